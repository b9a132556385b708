"""The services of one machine: their settings, addresses, ports and processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from triptych_common.host.cores import default_encoder_threads, num_usable_cores
from triptych_common.host.gpus import GPU_UTILIZATION, num_nvidia_gpus
from triptych_common.host.memory import usable_memory
from triptych_common.model.store import has_towers
from triptych_common.settings import GrpcServiceSettings, ServiceSettings

from triptych_cli.stack.ports import PortClaim, connect_host, free_port
from triptych_cli.stack.probes import grpc_ready, http_ready
from triptych_cli.stack.service_flags import SERVICES, ServiceArgs, has_flag, parse_settings, secrets_apart
from triptych_cli.stack.supervisor import STOP_GRACE_S, ServiceSpec


@dataclass(frozen=True)
class ServeOptions:
    """Options of `triptych serve`; None means the service's own default, or that nothing is wanted."""

    model: str
    host: str | None = None
    port: int | None = None
    grpc_port: int | None = None
    frontend_port: int | None = None
    encoder_port: int | None = None
    engine_port: int | None = None
    engines: int = 1
    encoders: int = 1
    frontends: int = 1
    served_model_name: str | None = None
    max_model_len: int | None = None
    quantization: str | None = None
    task: Literal["auto", "generate", "embed"] | None = None
    log_level: str | None = None
    log_format: str | None = None
    #: Directory with one directory of certificates for each service.
    certs: Path | None = None
    otlp_traces_endpoint: str | None = None
    ready_fd: int | None = None
    parent_pid: int | None = None

    def flags(self, service: str) -> dict[str, object]:
        """The flags of one service that follow from these options."""
        common = {
            "--log-level": self.log_level,
            "--log-format": self.log_format,
            "--tls-dir": self.certs / service if self.certs is not None else None,
            "--otlp-traces-endpoint": self.otlp_traces_endpoint,
        }
        model = {"--model": self.model, "--served-model-name": self.served_model_name, "--max-model-len": self.max_model_len}
        own: dict[str, dict[str, object]] = {
            "engine": {**model, "--port": self.engine_port, "--quantization": self.quantization, "--task": self.task},
            "encoder": {**model, "--port": self.encoder_port},
            "frontend": {**model, "--port": self.frontend_port, "--task": self.task},
            "gateway": {"--host": self.host, "--port": self.port, "--grpc-port": self.grpc_port},
        }
        return {**common, **own[service]}

    def num_replicas(self, service: str) -> int:
        """Number of instances of a service to start."""
        return {"engine": self.engines, "encoder": self.encoders, "frontend": self.frontends}.get(service, 1)


@dataclass(frozen=True)
class Service:
    """One service that will run on this machine."""

    #: engine, encoder, frontend or gateway.
    kind: str
    #: The kind, with a number if there are several.
    name: str
    #: May contain secrets, see `spec`.
    args: tuple[str, ...] = field(repr=False)
    settings: ServiceSettings

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


#: Service -> its flag with the addresses of other services -> the kind of these services.
_TOLD = {
    "engine": {"--encoder-addresses": "encoder"},
    "frontend": {"--engine-addresses": "engine", "--encoder-addresses": "encoder"},
    "gateway": {"--frontend-addresses": "frontend"},
}
#: Memory of a frontend or a gateway at work, and of an encoder without its cache of embeddings, in bytes.
_PROCESS_BYTES, _ENCODER_BYTES = 256 << 20, 1 << 30
#: The ports of the second service of a kind are those of the first plus this number, and so on.
_REPLICA_PORT_STEP = 10


def plan(options: ServeOptions, given: ServiceArgs, with_encoder: bool) -> list[Service]:
    """Determine the flags of each service, in start order.

    Args:
        given: flags for single services, without the services' names. They override the options.
        with_encoder: start an encoder, because the model takes more than text; see `needs_encoder`.

    Raises:
        CommandError: a service would refuse its settings.
    """
    services: list[Service] = []
    for kind in SERVICES:
        flags = options.flags(kind)
        if kind == "engine":
            flags["--num-threads"] = _cores_of_each(options, given)
            flags["--memory-limit"] = _memory_of_each(options, given, with_encoder)
            if with_encoder:
                flags["--num-threads-while-encoding"] = _cores_beside_encoder(options, given)
        if kind == "encoder" and not with_encoder:
            # Check the settings anyway: whether they are valid does not depend on the model.
            _settings(kind, options, given)
            continue
        for flag, told in _TOLD.get(kind, {}).items():
            flags[flag] = ",".join(service.address for service in services if service.kind == told) or None
        for number in range(options.num_replicas(kind)):
            name = f"{kind}-{number + 1}" if options.num_replicas(kind) > 1 else kind
            own = _gpu_of(number, options, given) if kind == "engine" else {}
            services.append(_settle(kind, name, number, {**flags, **own}, given.get(kind, [])))
    return services


def _settings(kind: str, options: ServeOptions, given: ServiceArgs) -> ServiceSettings:
    """The settings of a service as far as they follow from the command line and the environment alone."""
    return parse_settings(kind, _args(options.flags(kind), given.get(kind, [])))


def _args(flags: Mapping[str, object], given: Sequence[str]) -> list[str]:
    """What was given, and the flags that it does not have."""
    return [
        *given,
        *(part for flag, value in flags.items() if value is not None and not has_flag(given, flag) for part in (flag, str(value))),
    ]


def _cores_of_each(options: ServeOptions, given: ServiceArgs) -> int | None:
    """The compute threads of each of several engines, which share the cores; None if a setting determines them."""
    settings, num_engines = _settings("engine", options, given), options.engines
    if num_engines == 1 or getattr(settings, "num_threads", None) is not None or getattr(settings, "device", "").startswith("cuda"):
        return None
    return max(1, num_usable_cores() // num_engines)


def _memory_of_each(options: ServeOptions, given: ServiceArgs, with_encoder: bool) -> int | None:
    """Bytes that each engine may take, weights included; None if a setting determines the size of its KV cache."""
    engine, encoder = (_settings(name, options, given) for name in ("engine", "encoder"))
    is_set = any(getattr(engine, name, None) is not None for name in ("kv_cache_memory", "memory_limit"))
    if is_set or getattr(engine, "device", "").startswith("cuda"):
        return None
    others = _PROCESS_BYTES * (options.frontends + 1)
    if with_encoder:
        others += options.encoders * (_ENCODER_BYTES + int(getattr(encoder, "cache_memory", 0)))
    available = usable_memory().available
    # On a small machine the caches of the others are less likely to fill than the engine is to need its share.
    return max(available - others, available // 2) // options.engines


def _gpu_of(number: int, options: ServeOptions, given: ServiceArgs) -> dict[str, object]:
    """The GPU of one of several engines, and its share of that GPU's memory; empty if settings determine it, or without a GPU."""
    engine, num_gpus = _settings("engine", options, given), num_nvidia_gpus()
    is_set = any(getattr(engine, name, None) is not None for name in ("kv_cache_memory", "memory_utilization"))
    if options.engines == 1 or not num_gpus or is_set or getattr(engine, "device", "") != "auto":
        return {}
    num_sharing = len(range(number % num_gpus, options.engines, num_gpus))
    return {"--device": f"cuda:{number % num_gpus}", "--memory-utilization": round(GPU_UTILIZATION / num_sharing, 3)}


def _cores_beside_encoder(options: ServeOptions, given: ServiceArgs) -> int | None:
    """The compute threads of each engine while an encoder uses the other cores; None if a setting determines them."""
    engine, encoder = (_settings(name, options, given) for name in ("engine", "encoder"))
    if getattr(engine, "num_threads_while_encoding", None) is not None or getattr(encoder, "device", "").startswith("cuda"):
        return None
    num_cores = num_usable_cores()
    left = num_cores - (getattr(encoder, "num_threads", None) or default_encoder_threads(num_cores))
    return max(1, left // options.engines)


def needs_encoder(path: Path, options: ServeOptions, given: ServiceArgs) -> bool:
    """Whether to start an encoder: the model has towers, and the frontend has no addresses of other encoders."""
    frontend = _settings("frontend", options, given)
    return has_towers(path) and not getattr(frontend, "encoder_addresses", ())


def _settle(kind: str, name: str, number: int, flags: Mapping[str, object], given: Sequence[str]) -> Service:
    args = _args(flags, given)
    settings = parse_settings(kind, args)
    if number:
        args = _moved(args, settings, number * _REPLICA_PORT_STEP)
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
    return Service(kind, name, tuple(args), settings)


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
            claims.append(PortClaim(f"{service.name} (control)", settings.control_host, settings.resolved_control_port, flag))
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
    # Text can be served without the encoder.
    is_essential = service.kind != "encoder"
    stop_grace_s = settings.shutdown_grace_s + STOP_GRACE_S
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **secrets}
    return ServiceSpec(service.name, argv, environment, is_ready, is_essential, service.kind, stop_grace_s)
