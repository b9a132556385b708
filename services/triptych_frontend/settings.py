"""Settings of the frontend."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator
from pydantic_settings import SettingsConfigDict
from triptych_common.media.limits import MediaLimitSettings
from triptych_common.model.pooling import TaskName
from triptych_common.settings import DEFAULT_MODEL, TARGETS_HELP, Port, SamplingRatio, Targets, parse_bytes


class FrontendSettings(MediaLimitSettings):
    """Flags of `triptych frontend`; environment variables are the same names with the prefix TRIPTYCH_FRONTEND_."""

    model_config = SettingsConfigDict(env_prefix="TRIPTYCH_FRONTEND_")

    port: Annotated[Port, Field(description="Port to listen on; 0 takes a free one.")] = 50054
    model: Annotated[str, Field(description="Directory, built-in name or hub id (org/name).")] = DEFAULT_MODEL
    served_model_name: Annotated[str | None, Field(description="Name that clients use; by default follows from the model.")] = None
    engine_addresses: Annotated[Targets, Field(min_length=1, description=f"host:port of the engines, {TARGETS_HELP}.")] = (
        "127.0.0.1:50053",
    )
    routing: Annotated[
        Literal["prefix", "least-load", "round-robin"],
        Field(description="Which engine gets a request. prefix: by what its prefix cache has of the prompt, and by its load."),
    ] = "prefix"
    max_model_len: Annotated[
        int | None, Field(ge=1, description="Longest sequence in tokens; by default the engine's. Never more than the engine's.")
    ] = None
    task: Annotated[
        TaskName, Field(description="generate: text. embed: vectors. auto decides by the model's files. The same as the engine's.")
    ] = "auto"
    chat_template: Annotated[Path | None, Field(description="File with a Jinja chat template, instead of the model's own.")] = None
    generation_config: Annotated[
        Literal["auto", "none"],
        Field(
            description="Sampling parameters of requests that set none: auto takes temperature, top_p, top_k, min_p and "
            "repetition_penalty from the model's generation_config.json, then the contract's; none takes only the contract's."
        ),
    ] = "auto"
    tool_call_parser: Annotated[
        str,
        Field(
            description="How the model writes tool calls: hermes, llama3_json, mistral, pythonic, llama4_pythonic, granite, "
            "phi4_mini_json, qwen3_coder, glm45, glm47, minimax_m2, deepseek_v3, deepseek_v31, deepseek_v32, kimi_k2, gemma4, "
            "functiongemma, openai or json; or a Python file (name.py) that defines TOOL_FORMAT. auto chooses by the chat "
            "template; none leaves calls in the text and refuses tools."
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        Field(
            description="How the model marks what it thinks: openai_gptoss, qwen3, deepseek_r1, mistral, granite, seed_oss, "
            "kimi_vl or gemma4. auto chooses by the chat template and the tokenizer; none leaves it in the text."
        ),
    ] = "auto"
    num_tokenizer_threads: Annotated[int, Field(ge=1, le=64, description="Threads that render templates and tokenize.")] = min(
        4, os.cpu_count() or 1
    )
    trace_sampling_ratio: SamplingRatio = 1.0
    max_live_requests: Annotated[int, Field(ge=1, description="Calls at once, except ListModels; further ones are refused.")] = 2048
    max_prompt_chars: Annotated[
        int, Field(ge=1, description="Longest text of one request, in characters, before it is tokenized.")
    ] = 4_000_000
    template_timeout_s: Annotated[float, Field(gt=0, le=600, description="Longest rendering of a chat template, in seconds.")] = (
        10.0
    )

    encoder_addresses: Annotated[
        Targets, Field(description=f"host:port of the encoders, {TARGETS_HELP}. Needed by multimodal models; text never uses them.")
    ] = ()
    encode_timeout_s: Annotated[
        float, Field(gt=0, le=600, description="Longest wait for one encoder to encode an item; then the next one is asked.")
    ] = 60.0
    num_media_threads: Annotated[int, Field(ge=1, le=64, description="Threads that inspect media.")] = min(2, os.cpu_count() or 1)
    max_media_items: Annotated[int, Field(ge=0, description="Most images, audio and video files of one request together.")] = 16
    max_live_media_bytes: Annotated[
        int,
        BeforeValidator(parse_bytes),
        Field(ge=1, description="Bytes of media files that live calls hold together until their first tokens; more is refused."),
    ] = 512 << 20
    max_media_aliases: Annotated[int, Field(ge=1, description="Names (uuid) of media that are remembered.")] = 65_536
    media_timeout_s: Annotated[float, Field(gt=0, le=600, description="Longest fetch of a media address, in seconds.")] = 10.0
    max_media_redirects: Annotated[int, Field(ge=0, le=20, description="Redirects that a fetch follows.")] = 3
    allow_private_media_addresses: Annotated[
        bool,
        Field(description="Also fetch media from private and loopback addresses. Clients can then reach this network."),
    ] = False
    allowed_media_root: Annotated[
        Path | None, Field(description="Directory below which file: addresses may be read; by default none may.")
    ] = None

    @field_validator("allowed_media_root")
    @classmethod
    def _root_is_a_directory(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_dir():
            raise ValueError("is not a directory")
        return path

    @field_validator("chat_template")
    @classmethod
    def _template_is_a_file(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_file():
            raise ValueError("is not a file")
        return path
