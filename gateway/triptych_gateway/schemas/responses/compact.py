"""POST /v1/responses/compact: the request."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from triptych_gateway.schemas.common import NoOp, Schema, at, optional
from triptych_gateway.schemas.responses.items import Input


class CompactRequest(Schema):
    """A conversation that shall become shorter."""

    model: Annotated[str, Field(description="A name from /v1/models. It writes the summary.")]
    input: Input | None = optional("A text of the user, or items.")
    previous_response_id: str | None = optional("The conversation up to this stored response, before the input.", max_length=128)
    instructions: str | None = optional("A system message before all items.")
    prompt_cache_key: str | None = optional("A label; it changes nothing.", max_length=512)
    image: Annotated[Any, NoOp()] = None
    prompt_cache_options: Annotated[Any, NoOp()] = None
    prompt_cache_retention: Annotated[Any, NoOp("in_memory")] = None
    service_tier: Annotated[Any, NoOp("auto", "default")] = None

    @model_validator(mode="after")
    def _something_to_compact(self) -> Self:
        if self.input is None and self.previous_response_id is None:
            raise at("input", "this field is required, unless previous_response_id is given")
        return self
