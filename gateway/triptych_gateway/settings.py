"""Settings of the gateway: flags, or environment variables that start with TRIPTYCH_GATEWAY_."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES
from triptych_common.settings import TARGETS_HELP, Port, ServiceSettings, Targets, parse_bytes

from triptych_gateway.stores.opening import FORMS, check_target


class GatewaySettings(ServiceSettings):
    """OpenAI-compatible REST in front of a frontend."""

    model_config = SettingsConfigDict(env_prefix="TRIPTYCH_GATEWAY_")

    port: Annotated[Port, Field(description="Port to listen on; 0 takes a free one.")] = 8000
    frontend_addresses: Annotated[Targets, Field(min_length=1, description=f"host:port of the frontends, {TARGETS_HELP}.")] = (
        "127.0.0.1:50051",
    )
    api_key: Annotated[
        Annotated[SecretStr, Field(min_length=1)] | None,
        Field(
            description="When set, all routes but those for operators, /docs and the page at / need `Authorization: Bearer "
            "KEY` or `x-api-key: KEY`. Better set by environment."
        ),
    ] = None
    cors_allow_origins: Annotated[
        tuple[str, ...],
        NoDecode,
        Field(
            description="Origins, separated by commas, whose pages may call this server from a browser; * is any, empty is none."
        ),
    ] = ("*",)
    max_body_bytes: Annotated[
        int, Field(ge=1024, le=MAX_MESSAGE_BYTES // 2, description="Largest request body; larger ones are refused with 413.")
    ] = MAX_MESSAGE_BYTES // 2
    max_live_body_bytes: Annotated[
        int,
        BeforeValidator(parse_bytes),
        Field(
            ge=1024,
            description="Memory for the bodies of live requests. A body takes two and a half times its length while it is "
            "read and decoded, then the length of its files until a frontend has answered. Further bodies wait.",
        ),
    ] = 512 << 20
    body_wait_s: Annotated[
        float,
        Field(ge=0, le=600, description="Longest wait of a body for memory, in seconds; then its request is refused with 429."),
    ] = 30.0
    response_store: Annotated[
        str,
        AfterValidator(check_target),
        Field(
            description=f"Where the responses of /v1/responses are kept: {FORMS}. Several gateways share responses through a "
            "server; SQLite survives a restart. A URL with a password is better set by environment."
        ),
    ] = "memory"
    response_ttl_s: Annotated[float, Field(gt=0, le=366 * 86400, description="How long a stored response is kept, in seconds.")] = (
        30 * 86400.0
    )
    response_store_max_bytes: Annotated[
        int,
        BeforeValidator(parse_bytes),
        Field(
            ge=1024,
            description="Size of all stored responses; the oldest are dropped first. A server has a limit of its own.",
        ),
    ] = 256 << 20
    max_stored_response_bytes: Annotated[
        int,
        BeforeValidator(parse_bytes),
        Field(
            ge=1024,
            description="Largest input of a stored response, files included. A larger one is answered, and not stored; if the "
            "request asks for store, it is refused.",
        ),
    ] = 16 << 20
    max_background_responses: Annotated[
        int, Field(ge=0, le=10_000, description="Responses that are made in the background at the same time; further ones get 429.")
    ] = 256
    playground: Annotated[bool, Field(description="Serve the playground, a page for chats in the browser, at /.")] = True
    access_log: Annotated[bool, Field(description="Log one line per request.")] = True

    @field_validator("cors_allow_origins", mode="before")
    @classmethod
    def _split_commas(cls, value: Any) -> Any:
        # The command line gives a list of strings, the environment one string.
        parts = [value] if isinstance(value, str) else value
        return tuple(origin.strip() for part in parts for origin in part.split(",") if origin.strip())
