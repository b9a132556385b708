"""Tools of requests, and the choice between them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from triptych_gateway.schemas.common import JsonSchema, NoOp, Schema, optional, refuse
from triptych_gateway.schemas.messages.blocks import Cacheable, ToolInput

MAX_TOOLS = 1024


class Tool(Cacheable):
    """A function of the client that the model may call. Tools of Anthropic's servers are refused by name."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    description: str | None = optional("What the tool does, for the model.")
    input_schema: Annotated[
        JsonSchema, Field(description="JSON schema of the tool's input, an object. The order of its properties is kept.")
    ]
    strict: bool | None = optional("Constrain the input to the schema.")
    input_examples: list[ToolInput] | None = optional(
        "Examples of the input. The model sees them as `examples` of the schema.", max_length=64, fail_fast=True
    )
    eager_input_streaming: bool | None = optional(
        "Accepted, and it changes nothing: the input is always streamed as it is generated."
    )
    defer_loading: Annotated[Any, NoOp(False, because="there is no tool search; the model sees all tools")] = None
    allowed_callers: Annotated[Any, NoOp(["direct"], because="there is no code execution")] = None

    @model_validator(mode="before")
    @classmethod
    def _is_a_clients_own(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind != "custom":
            raise refuse(f"{kind[:60]!r} is a tool of Anthropic's; only custom tools are served", "unsupported")
        return value


class _MayCallSeveral(Schema):
    disable_parallel_tool_use: bool | None = optional("Call at most one tool in a turn.")


class ToolChoiceAuto(_MayCallSeveral):
    """The model decides whether it calls tools."""

    type: Literal["auto"]


class ToolChoiceAny(_MayCallSeveral):
    """The model must call a tool."""

    type: Literal["any"]


class ToolChoiceTool(_MayCallSeveral):
    """The model must call this tool."""

    type: Literal["tool"]
    name: str


class ToolChoiceNone(Schema):
    """The model calls no tool."""

    type: Literal["none"]


ToolChoice = Annotated[ToolChoiceAuto | ToolChoiceAny | ToolChoiceTool | ToolChoiceNone, Field(discriminator="type")]
