"""From the targets of a setting to a resolver."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path

from triptych.errors import StartupError

from triptych_common.cluster.kubernetes import KubernetesResolver, configuration
from triptych_common.cluster.registry import RegistryResolver
from triptych_common.cluster.resolver import DnsResolver, FileResolver, JoinedResolver, Resolver, StaticResolver, join
from triptych_common.targets import parse_address, parse_target


def resolver_of(targets: Sequence[str], role: str, fingerprint: str = "") -> Resolver:
    """The resolver for the targets in a setting.

    Args:
        targets: each `host:port`. An IP address or localhost is used as it is. Any other name stands for all its addresses, which
            are looked up periodically. `static:host:port` connects to the name without such lookups; `dns:host:port` looks up any
            name. `file:/path` stands for the addresses in a file, `kubernetes:service:port` and `kubernetes:service.namespace:port`
            for the endpoints of a Service, the URL of a registry for those that are registered there.
        role: of the services: engine, encoder or frontend.
        fingerprint: the model of the services; empty for any.

    Raises:
        StartupError: a target is not of this form; one of Kubernetes is given, and nothing says where the API server is.
    """
    static, resolvers = [], list[Resolver]()
    for target in targets:
        try:
            scheme, rest = parse_target(target)
        except ValueError as error:
            raise StartupError(str(error)) from None
        if scheme == "file":
            resolvers.append(FileResolver(Path(rest)))
            continue
        if scheme == "registry":
            resolvers.append(RegistryResolver(rest, role, fingerprint))
            continue
        host, port = parse_address(rest)
        if scheme == "kubernetes":
            configuration()  # what is missing is told at the start
            service, _, namespace = host.partition(".")
            resolvers.append(KubernetesResolver(service, namespace, port))
        elif scheme == "dns" or (not scheme and not _is_literal(host)):
            resolvers.append(DnsResolver(host, port))
        else:
            static.append(join(host, port))
    if static or not resolvers:
        resolvers.insert(0, StaticResolver(static))
    return resolvers[0] if len(resolvers) == 1 else JoinedResolver(resolvers)


def _is_literal(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
