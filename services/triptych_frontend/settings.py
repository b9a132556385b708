"""Settings of the frontend."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict
from triptych_common.settings import DEFAULT_MODEL, GrpcServiceSettings, Port


class FrontendSettings(GrpcServiceSettings):
    """Flags of `triptych frontend`; environment variables are the same names with the prefix TRIPTYCH_FRONTEND_."""

    model_config = SettingsConfigDict(env_prefix="TRIPTYCH_FRONTEND_")

    port: Annotated[Port, Field(description="Port to listen on; 0 takes a free one.")] = 50051
    model: Annotated[str, Field(description="Directory, built-in name or hub id (org/name).")] = DEFAULT_MODEL
    served_model_name: Annotated[str | None, Field(description="Name that clients use; by default follows from the model.")] = None
    engine_address: Annotated[str, Field(pattern=r"^\S+:\d+$", description="host:port of the engine.")] = "127.0.0.1:50053"
    max_model_len: Annotated[
        int | None, Field(ge=1, description="Longest sequence in tokens; by default the engine's. Never more than the engine's.")
    ] = None
    chat_template: Annotated[Path | None, Field(description="File with a Jinja chat template, instead of the model's own.")] = None
    num_tokenizer_threads: Annotated[int, Field(ge=1, le=64, description="Threads that render templates and tokenize.")] = min(
        4, os.cpu_count() or 1
    )
    max_live_requests: Annotated[
        int, Field(ge=1, description="Calls at the same time, ListModels apart; further ones are refused.")
    ] = 2048
    max_prompt_chars: Annotated[
        int, Field(ge=1, description="Longest text of one request, in characters, before it is tokenized.")
    ] = 4_000_000
    template_timeout_s: Annotated[float, Field(gt=0, le=600, description="Longest rendering of a chat template.")] = 10.0

    @field_validator("chat_template")
    @classmethod
    def _template_is_a_file(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_file():
            raise ValueError("is not a file")
        return path
