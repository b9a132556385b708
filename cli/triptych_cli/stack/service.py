"""One service on this machine: its settings, ports and process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from triptych_common.settings import GrpcServiceSettings, ServiceSettings

from triptych_cli.stack.ports import CONTROL, PortClaim, connect_host, free_port
from triptych_cli.stack.probes import grpc_ready, http_ready
from triptych_cli.stack.service_flags import has_flag, parse_settings, secrets_apart
from triptych_cli.stack.supervisor import STOP_GRACE_S, ServiceSpec


@dataclass(frozen=True)
class Service:
    """One service that will run on this machine."""

    #: engine, encoder, frontend or gateway.
    kind: str
    #: The kind, with a number if there are several, behind the name of one of several models.
    name: str
    #: May contain secrets, see `spec`.
    args: tuple[str, ...] = field(repr=False)
    settings: ServiceSettings
    #: The model, if there are several.
    group: str = ""

    @property
    def address(self) -> str:
        """host:port where the other services reach it."""
        return f"{connect_host(self.settings.host)}:{self.settings.port}"

    @property
    def grpc_address(self) -> str:
        """host:port where gRPC clients reach the gateway."""
        return f"{connect_host(self.settings.host)}:{getattr(self.settings, 'grpc_port', 0)}"

    @property
    def scheme(self) -> str:
        """Of the gateway's URL."""
        return "http" if getattr(self.settings, "https_dir", None) is None else "https"

    @property
    def url(self) -> str:
        """Where people reach the gateway."""
        return f"{self.scheme}://{self.address}"


def with_defaults(flags: Mapping[str, object], given: Sequence[str]) -> list[str]:
    """What was given, and the flags that it does not have."""
    return [
        *given,
        *(part for flag, value in flags.items() if value is not None and not has_flag(given, flag) for part in (flag, str(value))),
    ]


def settle(kind: str, name: str, flags: Mapping[str, object], given: Sequence[str], *, step: int = 0, group: str = "") -> Service:
    """A service with its ports.

    Args:
        flags: its flags, unless they are `given`.
        step: how much higher its ports are than they would be.
        group: see Service.
    """
    args = with_defaults(flags, given)
    settings = parse_settings(kind, args)
    if step:
        args = _moved(args, settings, step)
        settings = parse_settings(kind, args)
    # Port 0 means any free port. It is chosen here, because the other services must know it.
    if settings.port == 0:
        args = [*_without(args, "--port"), "--port", str(free_port(settings.host))]
        if isinstance(settings, GrpcServiceSettings) and settings.control_port is None:
            args += ["--control-port", str(free_port(settings.control_host))]
        settings = parse_settings(kind, args)
    if getattr(settings, "grpc_port", None) == 0:
        args = [*_without(args, "--grpc-port"), "--grpc-port", str(free_port(settings.host))]
        settings = parse_settings(kind, args)
    # Mutual TLS lets only operators in at the control port, so the supervisor asks at another one.
    if isinstance(settings, GrpcServiceSettings) and settings.tls_dir is not None and settings.health_port is None:
        args = [*args, "--health-port", str(free_port(settings.host))]
        settings = parse_settings(kind, args)
    return Service(kind, name, tuple(args), settings, group)


def _moved(args: Sequence[str], settings: ServiceSettings, step: int) -> list[str]:
    """The arguments of a further service of the same kind, with its own ports. Port 0 stays, because it means any free port."""
    moved = [*args]
    for flag, setting in (
        ("--port", "port"),
        ("--control-port", "control_port"),
        ("--metrics-port", "metrics_port"),
        ("--health-port", "health_port"),
    ):
        port = getattr(settings, setting, None)
        if port:
            moved = [*_without(moved, flag), flag, str(port + step)]
    return moved


def _without(args: Sequence[str], flag: str) -> list[str]:
    """The arguments without a flag and its value."""
    rest: list[str] = []
    queue = list(args)
    while queue:
        arg = queue.pop(0)
        if arg == flag:
            queue.pop(0)
        elif not arg.startswith(f"{flag}="):
            rest.append(arg)
    return rest


_PORT_FLAGS = {"engine": "--engine-port", "encoder": "--encoder-port", "frontend": "--frontend-port", "gateway": "--port"}


def port_claims(services: Sequence[Service]) -> list[PortClaim]:
    """All ports that the services will listen on."""
    claims = []
    for service in services:
        settings = service.settings
        claims.append(PortClaim(service.name, settings.host, settings.port, _PORT_FLAGS[service.kind]))
        if service.kind == "gateway":
            claims.append(PortClaim("gateway (gRPC)", settings.host, int(service.grpc_address.rpartition(":")[2]), "--grpc-port"))
        if isinstance(settings, GrpcServiceSettings):
            flag = f"--{service.kind}.control-port"
            claims.append(PortClaim(f"{service.name}{CONTROL}", settings.control_host, settings.resolved_control_port, flag))
            for what, port in (("metrics", settings.metrics_port), ("health", settings.health_port)):
                if port:
                    claims.append(PortClaim(f"{service.name} ({what})", settings.host, port, f"--{service.kind}.{what}-port"))
    return claims


def spec(service: Service) -> ServiceSpec:
    """How to run a service as a separate process."""
    settings = service.settings
    if not isinstance(settings, GrpcServiceSettings):
        is_ready = http_ready(connect_host(settings.host), settings.port, is_https=service.scheme == "https")
    elif settings.health_port:
        is_ready = grpc_ready(f"{connect_host(settings.host)}:{settings.health_port}")
    else:
        is_ready = grpc_ready(f"{connect_host(settings.control_host)}:{settings.resolved_control_port}")
    args, secrets = secrets_apart(service.kind, service.args)
    argv = [sys.executable, "-m", f"triptych_{service.kind}", *args]
    # Text can be served without the encoder, and one of several models without the others.
    is_essential = service.kind != "encoder" and not service.group
    stop_grace_s = settings.shutdown_grace_s + STOP_GRACE_S
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **secrets}
    return ServiceSpec(service.name, argv, environment, is_ready, is_essential, f"{service.group}/{service.kind}", stop_grace_s)
