"""Settings of the gateway: flags, or environment variables that start with TRIPTYCH_GATEWAY_."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES
from triptych_common.settings import Port, ServiceSettings


class GatewaySettings(ServiceSettings):
    """OpenAI-compatible REST in front of a frontend."""

    model_config = SettingsConfigDict(env_prefix="TRIPTYCH_GATEWAY_")

    port: Annotated[Port, Field(description="Port to listen on; 0 takes a free one.")] = 8000
    frontend_address: Annotated[str, Field(min_length=1, description="host:port of the frontend.")] = "127.0.0.1:50051"
    api_key: Annotated[
        Annotated[SecretStr, Field(min_length=1)] | None,
        Field(
            description="When set, /v1/*, /tokenize and /detokenize need `Authorization: Bearer KEY`. Better set by environment."
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
        int, Field(ge=1024, description="Bytes of bodies of live requests together; further requests are refused with 429.")
    ] = 1 << 30
    access_log: Annotated[bool, Field(description="Log one line per request.")] = True
    shutdown_grace_s: Annotated[
        float, Field(ge=0, le=600, description="Time for requests in flight to end once the process is told to stop, in seconds.")
    ] = 5.0

    @field_validator("cors_allow_origins", mode="before")
    @classmethod
    def _split_commas(cls, value: Any) -> Any:
        # The command line gives a list of what it was given, the environment a string.
        parts = [value] if isinstance(value, str) else value
        return tuple(origin.strip() for part in parts for origin in part.split(",") if origin.strip())
