"""HTTPS at the gateway's own port."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

from triptych_common.rpc.security.certificates import load_https, read_pem
from triptych_common.rpc.security.watched import WatchedCertificates

from triptych_gateway.connections.http_protocol import HEADER_TIMEOUT_S, LimitedHttpProtocol, max_connections

log = logging.getLogger(__name__)


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
        self.context.sni_callback = self._choose

    def protocol(self, **options: Any) -> asyncio.BaseProtocol:
        """For a new connection; the options are those of `LimitedHttpProtocol`."""
        return TlsHandshake(LimitedHttpProtocol(**options), self.context)

    def _choose(self, connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> None:
        """Called in each handshake, also if the client names no server."""
        connection.context = self.watched.current.server_context


class TlsHandshake(asyncio.Protocol):
    """A connection until its handshake has ended; then it is HTTP's.

    Event loops that listen with TLS themselves show a connection only after its handshake. Those whose handshake does not end would
    be missing from the limit on connections.
    """

    def __init__(self, http: LimitedHttpProtocol, context: ssl.SSLContext) -> None:
        self._http, self._context = http, context
        self._connections: set[Any] = http.connections
        self._early = b""  # what the client sent together with the end of its handshake

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._connections.add(self)
        if len(self._connections) > max_connections():
            transport.abort()  # without a handshake, there is no answer that the client could read
            return
        self._handshake = asyncio.get_running_loop().start_tls(
            transport, self, self._context, server_side=True, ssl_handshake_timeout=HEADER_TIMEOUT_S
        )
        # It begins here and not in a task: uvloop reads the client's first bytes before a task would run.
        try:
            self._handshake.send(None).add_done_callback(self._handshake_ended)
        except Exception:
            log.exception("a TLS handshake cannot begin")
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)

    def shutdown(self) -> None:
        """Called by uvicorn when it stops."""
        self._transport.abort()

    def _handshake_ended(self, ended: asyncio.Future[Any]) -> None:
        self._connections.discard(self)
        transport = None
        try:
            self._handshake.send(None)
        except StopIteration as end:
            transport = end.value
        except (Exception, asyncio.CancelledError) as error:
            log.debug("a TLS handshake failed: %s", error)
        if transport is None or transport.is_closing():
            self._transport.abort()
            return
        transport.set_protocol(self._http)
        self._http.connection_made(transport)
        if not self._early:
            return
        try:
            self._http.data_received(self._early)
        except Exception:
            log.exception("the first bytes of a connection cannot be read")
            transport.abort()
