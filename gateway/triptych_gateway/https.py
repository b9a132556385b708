"""HTTPS at the gateway's own port."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from pathlib import Path
from typing import Any

from triptych_common.rpc.security.certificates import load_https, read_pem
from triptych_common.rpc.security.watched import WatchedCertificates

from triptych_gateway.http_protocol import HEADER_TIMEOUT_S, LimitedHttpProtocol, max_connections

#: A client that does not answer the end of the TLS connection loses it after this time, in seconds.
_SHUTDOWN_TIMEOUT_S = 5.0


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

        self._opened: set[_CountedTls] = set()

    def protocol(self, **options: Any) -> asyncio.BaseProtocol:
        """For a new connection; the options are those of `LimitedHttpProtocol`."""
        return _CountedTls(LimitedHttpProtocol(**options), self.context, self._opened)

    async def watch(self) -> None:
        """Follow the files until cancelled."""
        await self.watched.watch(lambda: None)

    def _choose(self, connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> None:
        """Called in each handshake, also if the client names no server."""
        connection.context = self.watched.current.server_context


class _CountedTls(SSLProtocol):
    """TLS of a connection that counts from the first moment.

    Event loops that listen with TLS themselves show a connection only after its handshake. Those whose handshake does not end would
    be missing from the limit on connections. Event loops can also begin TLS later, but on uvloop the client's first bytes are lost
    then: it reads as soon as there is a connection.
    """

    def __init__(self, http: LimitedHttpProtocol, context: ssl.SSLContext, opened: set[_CountedTls]) -> None:
        self._opened = opened
        super().__init__(
            asyncio.get_running_loop(),
            http,
            context,
            waiter=None,  # type: ignore[arg-type]
            server_side=True,
            ssl_handshake_timeout=HEADER_TIMEOUT_S,  # type: ignore[arg-type]
            ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
        )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._opened.add(self)
        if len(self._opened) > max_connections():
            transport.abort()  # without a handshake, there is no answer that the client could read
            return
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._opened.discard(self)
        super().connection_lost(exc)
