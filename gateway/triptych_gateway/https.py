"""HTTPS at the gateway's own port."""

from __future__ import annotations

import ssl
from pathlib import Path

from triptych_common.rpc.security.certificates import load_https, read_pem
from triptych_common.rpc.security.watched import WatchedCertificates


class Https:
    """A server's certificate, renewed when its files change.

    Args:
        directory: with tls.crt and tls.key.

    Raises:
        StartupError: they cannot be used. The message names the file and the reason.
    """

    def __init__(self, directory: Path) -> None:
        self.watched = WatchedCertificates(directory, lambda: read_pem(directory, mutual=False), lambda: load_https(directory))
        #: For the server. Each connection gets the certificate that is current at its start.
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self.context.sni_callback = self._choose

    async def watch(self) -> None:
        """Follow the files until cancelled."""
        await self.watched.watch(lambda: None)

    def _choose(self, connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> None:
        """Called in each handshake, also if the client names no server."""
        connection.context = self.watched.current.server_context
