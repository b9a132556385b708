"""Mutual TLS of one process: its certificate as a server and as a client, and what became of its peers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
from prometheus_client import Metric

from triptych_common.rpc.security.certificates import PemFiles, load_mutual, read_pem
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.watched import WatchedCertificates
from triptych_common.telemetry.metrics import counter, gauge

#: Connections that are remembered, so that each is counted once. The one without calls for longest is forgotten first.
_MAX_KNOWN_CONNECTIONS = 16_384


class Tls:
    """The certificate of this process, renewed when its files change.

    Servers use a renewed certificate from the next connection on. Channels keep theirs, so their owners open new ones.

    Args:
        directory: with tls.crt, tls.key and ca.crt.
        role: what this process is. The certificate must name it.

    Raises:
        StartupError: the certificate cannot be used. The message names the file and the reason.
    """

    def __init__(self, directory: Path, role: Role) -> None:
        #: The files, and what they contain.
        self.watched = WatchedCertificates(
            directory, lambda: read_pem(directory, mutual=True), lambda: load_mutual(directory, role)
        )
        #: Calls of roles that have no right to the method.
        self.num_refused = 0
        self._num_handshakes, self._num_connections = 0, 0
        self._lock = threading.Lock()
        self._known: dict[str, None] = {}
        self._next_change = asyncio.Event()
        self._prepare()

    @classmethod
    def of(cls, directory: Path | None, role: Role) -> Tls | None:
        """The certificate in a setting; None if TLS is off."""
        return None if directory is None else cls(directory, role)

    @property
    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For new channels, with the current certificate."""
        return self._channel_credentials

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a port. Each connection gets the certificate that is current at its start. Clients must have one, too."""
        return server_credentials(lambda: self.watched.current.files, mutual=True, on_handshake=self._note_handshake)

    def _note_handshake(self) -> None:
        with self._lock:
            self._num_handshakes += 1

    async def watch(self) -> None:
        """Follow the files until cancelled."""
        await self.watched.watch(self._renewed)

    async def changed(self) -> None:
        """Wait for the next change of the certificate."""
        await self._next_change.wait()

    def note_call(self, connection: str) -> None:
        """Count a connection at its first call.

        Args:
            connection: gRPC's name of the peer, with its port.
        """
        if connection in self._known:
            self._known.pop(connection)  # it becomes the youngest again
        else:
            self._num_connections += 1
            if len(self._known) >= _MAX_KNOWN_CONNECTIONS:
                del self._known[next(iter(self._known))]
        self._known[connection] = None

    def families(self, prefix: str) -> list[Metric]:
        """The metrics of certificate and peers."""
        expiry_s = self.watched.current.expiry_s
        return [
            gauge(f"{prefix}_certificate_expiry_timestamp_seconds", "When the certificate expires, as Unix time.", expiry_s),
            counter(f"{prefix}_tls_handshakes", "TLS handshakes that were begun at gRPC ports.", self._num_handshakes),
            counter(f"{prefix}_tls_connections", "Connections with a certificate that made a call.", self._num_connections),
            counter(f"{prefix}_refused_calls", "Calls of a role that has no right to the method.", self.num_refused),
        ]

    def _prepare(self) -> None:
        files = self.watched.current.files
        self._channel_credentials = grpc.ssl_channel_credentials(files.authorities, files.key, files.chain)

    def _renewed(self) -> None:
        self._prepare()
        self._next_change.set()
        self._next_change = asyncio.Event()


def server_credentials(
    current: Callable[[], PemFiles], *, mutual: bool = False, on_handshake: Callable[[], None] = lambda: None
) -> grpc.ServerCredentials:
    """Credentials of a port whose certificate may change. Each connection gets the one that is current at its start.

    Args:
        current: returns the files as they are now, always the same object until they change.
        mutual: clients must have a certificate, too.
        on_handshake: called before each handshake, in a thread of gRPC's.
    """
    last = current()

    def configuration(files: PemFiles) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(files.key, files.chain)], files.authorities or None)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal last
        on_handshake()
        files = current()
        if files is last:
            return None
        last = files
        return configuration(files)

    # None stands for no change, which the stubs do not know.
    return grpc.dynamic_ssl_server_credentials(configuration(last), fetch, require_client_authentication=mutual)  # type: ignore[arg-type]
