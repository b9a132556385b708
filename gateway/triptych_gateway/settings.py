"""Settings of the gateway: flags, or environment variables that start with TRIPTYCH_GATEWAY_."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode, SettingsConfigDict
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES
from triptych_common.settings import TARGETS_HELP, Port, SamplingRatio, ServiceSettings, Targets, parse_bytes

from triptych_gateway.stores.opening import FORMS, SERVER_FORMS, check_rates_target, check_target

#: Pages of this machine, for example of a development server.
_LOOPBACK_ORIGIN = r"https?://([\w.-]+\.)?(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?"


def _split_commas(value: Any) -> Any:
    if value is None:
        return None
    # The command line gives a list of strings, the environment one string.
    parts = [value] if isinstance(value, str) else value
    return tuple(name.strip() for part in parts for name in part.split(",") if name.strip())


def _path_or_none(value: Any) -> Any:
    return None if value == "" else value


_Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1024)]
_Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_commas)]


class GatewaySettings(ServiceSettings):
    """OpenAI-compatible REST, and gRPC with keys, in front of frontends."""

    model_config = SettingsConfigDict(env_prefix="TRIPTYCH_GATEWAY_")

    port: Annotated[Port, Field(description="Port to listen on; 0 takes a free one.")] = 8000
    grpc_port: Annotated[
        Port,
        Field(description="Port of the frontends' gRPC services, with the same keys, rates and certificate; 0 takes a free one."),
    ] = 50051
    frontend_addresses: Annotated[Targets, Field(min_length=1, description=f"host:port of the frontends, {TARGETS_HELP}.")] = (
        "127.0.0.1:50054",
    )
    expected_models: Annotated[
        _Names,
        Field(description="Models that may be scaled to zero: a request for one waits `model_wait_s` and gets 503, not 404."),
    ] = ()
    model_wait_s: Annotated[
        float,
        Field(ge=0, le=3600, description="How long a request waits for a frontend of its model, while there is none, in seconds."),
    ] = 0.0
    model_manager: Annotated[
        Path | None,
        Field(description="Socket of the model manager of `triptych serve`, which sets it."),
    ] = None
    https_dir: Annotated[
        Path | None,
        Field(description="Directory with tls.crt and tls.key. It turns on HTTPS."),
    ] = None
    api_key: Annotated[
        Annotated[SecretStr, Field(min_length=1)] | None,
        Field(description="A key without limits, for a gateway with one user. Better set by environment."),
    ] = None
    api_keys_file: Annotated[
        Path | None,
        Field(description="File with the hashes of API keys, which `triptych keys` writes. It is read again when it changes."),
    ] = None
    load_metrics_without_key: Annotated[
        bool,
        Field(description="Answer GET /metrics without a key too, with the engines' load alone (vllm:...)."),
    ] = False
    rate_limit_store: Annotated[
        str,
        AfterValidator(check_rates_target),
        Field(
            repr=False,
            description=f"Where the rates of keys are counted: memory, or {SERVER_FORMS}, if several gateways share them. A URL "
            "with a password is better set by environment.",
        ),
    ] = "memory"
    audit_log: Annotated[
        str | None,
        Field(
            min_length=1,
            description="File to which a JSON line is appended for each request that needs a key; - is standard error. Off by "
            "default.",
        ),
    ] = None
    cors_allow_origins: Annotated[
        tuple[str, ...] | None,
        NoDecode,
        BeforeValidator(_split_commas),
        Field(
            description="Origins, separated by commas, whose pages may call this server from a browser; * is any, empty is none. "
            "By default pages of this machine (localhost), or none if there are API keys."
        ),
    ] = None
    allowed_hosts: Annotated[
        _Names,
        Field(
            description="Names by which the gateway is reached without API keys; *.example.com is all below one, * any. Another "
            "host gets 403 (DNS rebinding). Addresses, names without a dot, and .localhost, .local, .internal and .svc "
            "are always taken."
        ),
    ] = ()
    max_body_bytes: Annotated[
        int, Field(ge=1024, le=MAX_MESSAGE_BYTES // 2, description="Largest request body; larger ones are refused with 413.")
    ] = MAX_MESSAGE_BYTES // 2
    max_live_body_bytes: Annotated[
        _Bytes,
        Field(
            description="Memory for the bodies of live requests, in fair shares; further ones wait. A body takes two and a half "
            "times what has arrived of it until it is decoded, then the length of its files until a frontend has "
            "answered.",
        ),
    ] = 512 << 20
    body_wait_s: Annotated[
        float,
        Field(ge=0, le=600, description="Longest wait of a body for memory, in seconds; then its request is refused with 429."),
    ] = 30.0
    body_timeout_s: Annotated[
        float,
        Field(
            gt=0,
            le=3600,
            description="Longest time in which a body arrives, in seconds; then 408. One with less than 160 KiB in ten seconds is "
            "refused earlier.",
        ),
    ] = 300.0
    response_store: Annotated[
        str,
        AfterValidator(check_target),
        Field(
            repr=False,
            description=f"Where the responses of /v1/responses are kept: {FORMS}. A URL with a password is better set by "
            "environment.",
        ),
    ] = "memory"
    response_ttl_s: Annotated[float, Field(gt=0, le=366 * 86400, description="How long a stored response is kept, in seconds.")] = (
        30 * 86400.0
    )
    response_store_max_bytes: Annotated[
        _Bytes,
        Field(
            description="Size of all stored responses; then the tenant that keeps most loses its oldest. A server has a limit of "
            "its own.",
        ),
    ] = 256 << 20
    max_stored_response_bytes: Annotated[
        _Bytes,
        Field(
            description="Largest input of a stored response, files included. A larger one is not stored, or refused if it asks for "
            "store.",
        ),
    ] = 16 << 20
    max_background_responses: Annotated[
        int,
        Field(
            ge=0,
            le=10_000,
            description="Responses that are made in the background at the same time; further ones, and those beyond a "
            "tenant's share, get 429.",
        ),
    ] = 256
    files_dir: Annotated[
        Path | None,
        BeforeValidator(_path_or_none),
        Field(
            description="Directory of files and batches, on this machine; without one they are refused. `triptych serve` sets it "
            "to `files` in its cache directory; an empty value turns files off."
        ),
    ] = None
    max_file_bytes: Annotated[_Bytes, Field(description="Largest file; larger ones are refused with 413.")] = 512 << 20
    files_max_bytes: Annotated[
        _Bytes,
        Field(
            description="Size of all files, in fair shares. Further ones are refused, but the output of batches. 256 MiB of the "
            "file system stay free."
        ),
    ] = 8 << 30
    max_batch_requests: Annotated[
        int,
        Field(
            ge=1,
            le=10_000,
            description="Requests of batches that are answered at the same time, in fair shares.",
        ),
    ] = 16
    max_websockets: Annotated[
        int, Field(ge=0, le=100_000, description="WebSockets that are open at the same time; further ones get 429.")
    ] = 1024
    max_metric_tenants: Annotated[
        int,
        Field(
            ge=0,
            le=10_000,
            description="Tenants with metrics of their own: the first that send a request. Others are `(other)`.",
        ),
    ] = 100
    playground: Annotated[bool, Field(description="Serve the playground, a page for chats in the browser, at /.")] = True
    access_log: Annotated[bool, Field(description="Log one line per request.")] = True
    trace_sampling_ratio: SamplingRatio = 1.0

    @property
    def has_keys(self) -> bool:
        """Whether callers need an API key."""
        return self.api_key is not None or self.api_keys_file is not None

    @property
    def allowed_origins(self) -> tuple[tuple[str, ...], str | None]:
        """Origins whose pages may call this server: by name, with `*` for any, and by a regular expression."""
        if self.cors_allow_origins is not None:
            return self.cors_allow_origins, None
        return (), None if self.has_keys else _LOOPBACK_ORIGIN

    def allows_origin(self, origin: str) -> bool:
        """Whether pages of this origin may call this server."""
        names, pattern = self.allowed_origins
        return "*" in names or origin in names or (pattern is not None and re.fullmatch(pattern, origin) is not None)
