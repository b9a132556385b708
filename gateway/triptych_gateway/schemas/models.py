"""GET /v1/models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field


class ModelAbilities(BaseModel):
    """What requests to a model may ask for. Triptych's own addition to OpenAI's object."""

    tasks: Annotated[list[str], Field(description="`generate`, or for other models: `embed`, `token_embed`, `classify`, `score`.")]
    modalities: Annotated[list[str], Field(description="Media that messages may have: image, audio, video. Empty: only text.")]
    tools: Annotated[bool, Field(description="Whether `tools` is honoured.")]
    reasoning: Annotated[bool, Field(description="Whether reasoning is told apart from the answer.")]
    constraints: Annotated[list[str], Field(description="Kinds of structured output, by the names of the gRPC contract.")]
    default_sampling: Annotated[
        dict[str, float],
        Field(description="Sampling parameters of requests that set none, from generation_config.json."),
    ]


class Model(BaseModel):
    """A model that requests can name."""

    id: str
    object: Literal["model"] = "model"
    created: Annotated[int, Field(description="When this gateway started, in seconds since 1970.")]
    owned_by: str = "triptych"
    max_model_len: Annotated[int, Field(description="Longest sequence, prompt and output together, in tokens.")]
    triptych: ModelAbilities


class ModelList(BaseModel):
    """All models that requests can name."""

    object: Literal["list"] = "list"
    data: list[Model]
