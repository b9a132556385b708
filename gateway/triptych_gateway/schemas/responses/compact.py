"""POST /v1/responses/compact: the request."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from triptych_gateway.schemas.common import NoOp, Schema, at
from triptych_gateway.schemas.responses.items import Input


class CompactRequest(Schema):
    """A conversation that shall become shorter."""

    model: Annotated[str, Field(description="A name from /v1/models. It writes the summary.")]
    input: Annotated[Input | None, Field(description="A text of the user, or items.")] = None
    previous_response_id: Annotated[
        str | None, Field(max_length=128, description="The conversation up to this stored response, before the input.")
    ] = None
    instructions: Annotated[str | None, Field(description="A system message before all items.")] = None
    prompt_cache_key: Annotated[str | None, Field(max_length=512, description="A label; it changes nothing.")] = None
    image: Annotated[Any, NoOp()] = None
    prompt_cache_options: Annotated[Any, NoOp()] = None
    prompt_cache_retention: Annotated[Any, NoOp("in_memory")] = None
    service_tier: Annotated[Any, NoOp("auto", "default")] = None

    @model_validator(mode="after")
    def _something_to_compact(self) -> Self:
        if self.input is None and self.previous_response_id is None:
            raise at("input", "this field is required, unless previous_response_id is given")
        return self
