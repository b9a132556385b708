"""GET /v1/models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field


class Model(BaseModel):
    """A model that requests can name."""

    id: str
    object: Literal["model"] = "model"
    created: Annotated[int, Field(description="When this gateway started, in seconds since 1970.")]
    owned_by: str = "triptych"
    max_model_len: Annotated[int, Field(description="Longest sequence, prompt and output together, in tokens.")]


class ModelList(BaseModel):
    """All models that requests can name."""

    object: Literal["list"] = "list"
    data: list[Model]
