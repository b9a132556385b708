"""Ports on this machine: checks whether a port is free, and finds free ports."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from triptych_cli.errors import CommandError

#: Ends the name of a service's control port in `PortClaim.service`.
CONTROL = " (control)"
#: Where `free_port` looks: below the ports that operating systems give to connections by default, so that no connection takes one
#: before its service listens. And below those of `torch.distributed` and of Kubernetes' services.
_PORTS = range(16_384, 29_500)
#: Ports that `free_port` has returned in this process.
_returned: set[int] = set()


@dataclass(frozen=True)
class PortClaim:
    """A port that a service will listen on."""

    service: str
    host: str
    port: int
    #: The flag that changes it.
    flag: str


def check_ports(claims: Iterable[PortClaim]) -> None:
    """Raise CommandError when ports are taken or two services claim the same one. The message names services, ports and flags."""
    first: dict[int, PortClaim] = {}
    taken: dict[str, PortClaim] = {}
    for claim in claims:
        other = first.setdefault(claim.port, claim)
        if other is not claim:
            raise CommandError(
                f"port {claim.port} is wanted by both the {other.service} ({other.flag}) and the {claim.service} ({claim.flag})"
            )
        if _is_taken(claim):
            taken[claim.service] = claim
    # A control port moves with the port of its service.
    moved = [
        claim for name, claim in taken.items() if name.removesuffix(CONTROL) == name or name.removesuffix(CONTROL) not in taken
    ]
    if len(moved) > 1:
        listed = ", ".join(f"{claim.port} of the {claim.service} ({claim.flag})" for claim in moved)
        raise CommandError(f"ports are taken: {listed}; choose others, or 0 for free ones")
    for claim in moved:
        raise CommandError(
            f"port {claim.port} of the {claim.service} is taken ({claim.host}:{claim.port}); choose another: {claim.flag}"
        )


def _is_taken(claim: PortClaim) -> bool:
    try:
        _bind(claim.host, claim.port).close()
        return False
    except socket.gaierror as error:
        raise CommandError(f"the {claim.service} cannot listen on {claim.host}: no such host") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return True
        raise CommandError(
            f"the {claim.service} cannot listen on {claim.host}:{claim.port}: {error.strerror}; choose another port: {claim.flag}"
        ) from error


def free_port(host: str) -> int:
    """A free port. Each call returns a different one, because a port stays free until its service listens. Raises CommandError if
    there is none."""
    first = secrets.randbelow(len(_PORTS))  # `random` may have the same seed in two processes
    for port in (*_PORTS[first:], *_PORTS[:first]):
        if port in _returned:
            continue
        try:
            _bind(host, port, is_alone=True).close()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        _returned.add(port)
        return port
    raise CommandError(f"no port of {host} from {_PORTS.start} to {_PORTS.stop - 1} is free")


def _bind(host: str, port: int, *, is_alone: bool = False) -> socket.socket:
    """A socket that is bound.

    Args:
        is_alone: fail also where another socket is bound that does not listen yet.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if not is_alone:
            # A port that only waits for late packets of closed connections counts as free; servers can bind it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def connect_host(listen_host: str) -> str:
    """The host by which this machine connects to a service that listens on `listen_host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(listen_host, listen_host)  # noqa: S104
    return f"[{host}]" if ":" in host else host
