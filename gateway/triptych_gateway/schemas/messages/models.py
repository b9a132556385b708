"""GET /v1/models, for Anthropic's clients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field


class AnthropicModel(BaseModel):
    """A model that requests can name."""

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: Annotated[str, Field(description="When this gateway started, as RFC 3339 has it.")]
    lifecycle: Literal["active"] = "active"
    max_input_tokens: Annotated[int, Field(description="Longest sequence, prompt and output together, in tokens.")]
    max_tokens: Annotated[int, Field(description="The same.")]


class AnthropicModelList(BaseModel):
    """A page of the models that requests can name."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None
