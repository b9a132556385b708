"""The Host header of requests, as a defence against DNS rebinding.

A page of a foreign site can reach a gateway in the network of its reader, when the site's name begins to resolve to the gateway's
address. The browser then sends the site's name as the host. It cannot send an address, nor a name that no site can have.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.exceptions import HTTPException

#: Domains that nobody can register: of this machine, of local networks, and of Kubernetes' services.
_LOCAL = ("localhost", "local", "internal", "home.arpa", "lan", "svc", "test")


class HostCheck:
    """Refuses hosts that may be a foreign site's.

    Args:
        allowed: names that are taken too; `*.example.com` is all names below one, and `*` every name.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = tuple(name.lower().rstrip(".") for name in allowed)

    def check(self, hosts: Sequence[str]) -> None:
        """Raise HTTPException unless the values of the Host header are accepted. HTTP/1.0 has none; browsers always send one."""
        for host in hosts:
            if not self._accepts(_name(host)):
                message = (
                    f"the host {host[:100]!r} may be a foreign site's (DNS rebinding), and is not served; set allowed_hosts to the "
                    "names by which this gateway is reached"
                )
                raise HTTPException(403, message)

    def _accepts(self, name: str) -> bool:
        if "." not in name or _is_address(name) or any(name.endswith(f".{domain}") for domain in _LOCAL):
            return True
        labels = name.split(".")
        parents = {"*." + ".".join(labels[number:]) for number in range(1, len(labels))}
        return "*" in self._allowed or name in self._allowed or not parents.isdisjoint(self._allowed)


def _name(host: str) -> str:
    """The host without its port, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
