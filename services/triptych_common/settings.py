"""Settings that all services share: read from flags and environment, validated once, then frozen."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, CliApp, NoDecode, SettingsConfigDict
from triptych.errors import StartupError

from triptych_common.targets import REGISTRY_URL, is_loopback, parse_target
from triptych_common.telemetry.logs import LogFormat

S = TypeVar("S", bound=BaseSettings)
Port = Annotated[int, Field(ge=0, le=65535)]
#: Of a service that may begin a trace.
SamplingRatio = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Share of the requests without a trace of their own that are traced.",
    ),
]
#: Added to a service's port to get the default of its control port.
CONTROL_PORT_OFFSET = 100
DEFAULT_MODEL = "smollm2-135m-vision"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(value: object) -> object:
    """`512M`, `2GiB` or a plain number of bytes. Anything else is returned unchanged, for validation to refuse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", str(value).strip(), re.IGNORECASE)
    return int(float(match[1]) * _UNITS[match[2].upper()]) if match else value


class ServiceSettings(BaseSettings):
    """Base of each service's settings. Flags are field names with dashes. Environment variables have the service's prefix."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", cli_kebab_case=True, cli_implicit_flags=True, cli_avoid_json=True, protected_namespaces=()
    )

    host: Annotated[str, Field(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, Field(description="Port to listen on; 0 takes a free one.")] = 0
    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], Field(description="Least severe level to log.")] = "INFO"
    log_format: Annotated[LogFormat, Field(description="text for people, json for collectors.")] = "text"
    tls_dir: Annotated[
        Path | None,
        Field(
            description="Directory with tls.crt, tls.key and ca.crt. It turns on mutual TLS at all gRPC ports of this service and "
            "on its connections to others."
        ),
    ] = None
    otlp_traces_endpoint: Annotated[
        str | None,
        Field(
            pattern=r"^https?://[^/\s]+/?$",
            description="URL of a collector that takes traces over OTLP (gRPC), e.g. http://collector:4317; https for TLS. Off by "
            "default.",
        ),
    ] = None
    shutdown_grace_s: Annotated[
        float, Field(ge=0, le=3600, description="Time for requests in flight to end once the process is told to stop, in seconds.")
    ] = 30.0

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_environment(cls, data: Any) -> Any:
        """A misspelt variable must not be ignored silently."""
        prefix = cls.model_config.get("env_prefix", "").upper()
        known = {prefix + name.upper() for name in cls.model_fields}
        unknown = sorted(name for name in os.environ if prefix and name.startswith(prefix) and name not in known)
        if unknown:
            raise ValueError(f"unknown environment variable {unknown[0]}; known are {', '.join(sorted(known))}")
        return data


class GrpcServiceSettings(ServiceSettings):
    """Settings of a service that speaks gRPC and has a control port."""

    advertised_address: Annotated[
        str | None,
        Field(
            pattern=r"^\S+:\d+$",
            description="host:port by which others reach this service; by default those that it listens on, or the machine's name "
            "if it listens on all addresses.",
        ),
    ] = None
    registry: Annotated[
        str | None,
        Field(
            pattern=REGISTRY_URL.pattern,
            repr=False,
            description="Valkey or Redis server, e.g. valkey://host:6379/0, where this service is registered while it is ready.",
        ),
    ] = None
    control_host: Annotated[str, Field(description="Address of the control port.")] = "127.0.0.1"
    control_port: Annotated[Port | None, Field(description="Control port; by default the port plus 100.")] = None
    insecure_grpc: Annotated[
        bool,
        Field(
            description="Allow gRPC without TLS on an address that other machines reach. Whoever reaches it needs no API key and "
            "may act as any tenant."
        ),
    ] = False
    metrics_port: Annotated[Port | None, Field(description="Port of GET /metrics for Prometheus; off by default.")] = None

    health_port: Annotated[
        Port | None,
        Field(description="Port for health checks (grpc.health.v1) without TLS and without any other service; off by default."),
    ] = None

    @model_validator(mode="after")
    def _control_port_in_range(self) -> Self:
        if self.control_port is None and self.port + CONTROL_PORT_OFFSET > 65535:
            raise ValueError(f"port {self.port} leaves no room for the control port (port + {CONTROL_PORT_OFFSET})")
        return self

    @model_validator(mode="after")
    def _plaintext_stays_here(self) -> Self:
        secured = {"host": self.has_tls, "control_host": self.tls_dir is not None}
        for field, has_tls in secured.items():
            host = getattr(self, field)
            if not (has_tls or self.insecure_grpc or is_loopback(host)):
                raise ValueError(
                    f"{field} {host} lets other machines reach a gRPC port without TLS; set tls_dir for mutual TLS, or "
                    "insecure_grpc where nobody else reaches that address"
                )
        return self

    @property
    def has_tls(self) -> bool:
        """Whether the service's own port has TLS."""
        return self.tls_dir is not None

    @property
    def resolved_control_port(self) -> int:
        """The control port; 0 (any free port) when it is unset and the port is 0."""
        if self.control_port is not None:
            return self.control_port
        return self.port + CONTROL_PORT_OFFSET if self.port else 0


def _split_targets(value: Any) -> Any:
    # The command line gives a list of its arguments, the environment gives a string.
    parts = [value] if isinstance(value, str) else value
    return tuple(target.strip() for part in parts for target in part.split(",") if target.strip())


def _check_targets(targets: tuple[str, ...]) -> tuple[str, ...]:
    for target in targets:
        parse_target(target)
    return targets


#: Targets of services of one kind, separated by commas.
Targets = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_targets), AfterValidator(_check_targets)]
#: Common end of the help text of every setting of this type.
TARGETS_HELP = "separated by commas; or dns:name:port, file:/path, kubernetes:service:port, valkey://host:port"


def read_settings(program: str, cls: type[S]) -> S:
    """Settings from flags and environment. If they are wrong, this process ends with one line about them."""
    try:
        return CliApp.run(cls)
    except ValidationError as error:
        sys.exit(f"{program}: {startup_error(error)}")


def startup_error(error: ValueError) -> StartupError:
    """A pydantic validation error as one line per setting."""
    details = getattr(error, "errors", None)
    if details is None:
        return StartupError(str(error))
    lines = []
    for detail in details():
        name = ".".join(map(str, detail["loc"]))
        # A URL may have a password.
        given = re.sub(r"//[^/@\s]*@", "//...@", f" (given: {detail['input']!r})") if name else ""
        told = detail["msg"].removeprefix("Value error, ")  # pydantic's, before what our own checks say
        lines.append(f"{name}: {told}{given}" if name else told)
    return StartupError("bad settings: " + "; ".join(lines))
