"""Tools of chat completions: the functions that the model may call, whether it calls them, and the calls that it made."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import from_json
from triptych_common.limits import MAX_TOOL_NAME_CHARS

from triptych_gateway.wire.schema import HistorySchema, JsonSchema, Schema, optional, refuse

MAX_TOOLS = 1024
MAX_TOOL_CALLS = 1024

ToolName = Annotated[str, Field(min_length=1, max_length=MAX_TOOL_NAME_CHARS)]


class FunctionDefinition(Schema):
    """A function that the model may call."""

    name: ToolName
    description: str | None = optional("What it does; for the model.")
    parameters: JsonSchema | None = optional("JSON Schema of the arguments. By default there are none.")
    strict: bool | None = optional("Constrain the arguments to the schema. Default false.")


class FunctionName(Schema):
    """A function of the request, by name."""

    name: ToolName


def _no_custom_tool(value: Any) -> Any:
    if isinstance(value, dict) and value.get("type") == "custom":
        raise refuse("custom tools are not supported; send a tool of type function", "unsupported")
    return value


class FunctionTool(Schema):
    """A tool."""

    type: Literal["function"]
    function: FunctionDefinition


Tool = Annotated[FunctionTool, BeforeValidator(_no_custom_tool)]
Tools = Annotated[
    list[Tool],
    Field(max_length=MAX_TOOLS, description="Functions that the model may call. Custom tools are refused.", fail_fast=True),
]


class NamedTool(Schema):
    """One function, by name. As a choice it says: call this function."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Schema):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[
        list[Annotated[NamedTool, BeforeValidator(_no_custom_tool)]], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)
    ]


class AllowedToolsChoice(Schema):
    """The model may call only these tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _choice_kind(value: Any) -> str:
    if not isinstance(value, dict):
        return "mode"
    return "allowed_tools" if value.get("type") == "allowed_tools" else "function"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedTool, BeforeValidator(_no_custom_tool), Tag("function")]
    | Annotated[AllowedToolsChoice, Tag("allowed_tools")],
    Discriminator(_choice_kind),
]


def chosen_names(choice: ToolChoice | None) -> list[tuple[str, str]]:
    """The tools that a choice names, each with its path in the choice."""
    if isinstance(choice, NamedTool):
        return [("function.name", choice.function.name)]
    if isinstance(choice, AllowedToolsChoice):
        tools = choice.allowed_tools.tools
        return [(f"allowed_tools.tools[{number}].function.name", tool.function.name) for number, tool in enumerate(tools)]
    return []


class CalledFunction(HistorySchema):
    """The function of a call, and its arguments."""

    name: ToolName
    arguments: Annotated[str, Field(description="JSON text.")]


class MessageToolCall(HistorySchema):
    """A call that the assistant made."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"]
    function: CalledFunction


ToolCalls = Annotated[
    list[Annotated[MessageToolCall, BeforeValidator(_no_custom_tool)]],
    Field(max_length=MAX_TOOL_CALLS, description="The assistant's: the tools that it called.", fail_fast=True),
]


def arguments_object(arguments: str) -> orjson.Fragment:
    """The arguments of a tool call as a JSON object, as far as they go. Empty if they are no JSON object.

    Whole arguments stay as the model wrote them. Arguments that were cut are read as Anthropic's client reads them from a stream:
    without the value that is not complete.
    """
    with suppress(orjson.JSONDecodeError):
        if isinstance(orjson.loads(arguments), dict):
            return orjson.Fragment(arguments)
    # orjson refuses integers of more than 64 bits, in which case nothing is left.
    with suppress(ValueError, orjson.JSONEncodeError):
        value = from_json(arguments, allow_partial=True)
        if isinstance(value, dict):
            return orjson.Fragment(orjson.dumps(value))
    return orjson.Fragment(b"{}")
