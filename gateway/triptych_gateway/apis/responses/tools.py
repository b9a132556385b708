"""Tools, and the format of the text, in requests of /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from triptych_gateway.wire.schema import JsonSchema, NoOp, Schema, at, optional, refuse
from triptych_gateway.wire.tools import FunctionDefinition

MAX_TOOLS = 512
_NAME = r"^[a-zA-Z0-9_.-]+$"
ToolName = Annotated[str, Field(min_length=1, max_length=128, pattern=_NAME)]


def _is_function(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("type"), str) and value["type"] != "function":
        raise refuse(f"tools of type {value['type'][:40]!r} are not served; only functions are", "unsupported")
    return value


class ResponseTool(FunctionDefinition):
    """A function that the model may call. The client runs it."""

    type: Literal["function"]
    name: ToolName
    allowed_callers: Annotated[Any, NoOp(["direct"])] = None
    defer_loading: Annotated[Any, NoOp(False)] = None
    output_schema: Annotated[Any, NoOp()] = None


Tools = Annotated[list[Annotated[ResponseTool, BeforeValidator(_is_function)]], Field(max_length=MAX_TOOLS, fail_fast=True)]


class ResponseToolName(Schema):
    """The name of a function."""

    type: Literal["function"]
    name: ToolName


Named = Annotated[ResponseToolName, BeforeValidator(_is_function)]


class ResponseAllowedTools(Schema):
    """The tools that may be called, out of all that the model sees."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] | None = optional("Default auto.")
    tools: Annotated[list[Named], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


def _choice_kind(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "mode" if isinstance(value, str) else getattr(value, "type", "mode")
    given = value.get("type")
    return given if isinstance(given, str) else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[ResponseToolName, Tag("function")]
    | Annotated[ResponseAllowedTools, Tag("allowed_tools")],
    Discriminator(_choice_kind),
]


def check_tools(tools: list[ResponseTool] | None, choice: ToolChoice | None) -> None:
    """Raise an error if names of tools repeat, or if the choice names a tool that is not there."""
    names = [tool.name for tool in tools or ()]
    if len(set(names)) < len(names):
        raise at("tools", "two tools have the same name")
    wanted: list[ResponseToolName] = []
    if isinstance(choice, ResponseAllowedTools):
        wanted = list(choice.tools)
    elif isinstance(choice, ResponseToolName):
        wanted = [choice]
    missing = next((tool.name for tool in wanted if tool.name not in names), None)
    if missing is not None:
        raise at("tool_choice", f"there is no tool {missing!r} in tools")
    if choice == "required" and not names:
        raise at("tool_choice", "required needs tools")


class TextPlain(Schema):
    """Any text."""

    type: Literal["text"]


class TextJsonObject(Schema):
    """Any JSON object."""

    type: Literal["json_object"]


class TextJsonSchema(Schema):
    """JSON of a schema. The text always keeps to it, whether `strict` is set or not."""

    type: Literal["json_schema"]
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
    schema_: Annotated[JsonSchema, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


TextFormat = Annotated[TextPlain | TextJsonObject | TextJsonSchema, Field(discriminator="type")]


class TextOptions(Schema):
    """Options of the text."""

    format: TextFormat | None = None
    verbosity: Annotated[Any, NoOp("medium")] = None


class ReasoningOptions(Schema):
    """Options of reasoning."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = optional(
        "As the model's chat template knows it."
    )
    summary: Literal["auto", "detailed"] | None = optional("Send the whole reasoning as its summary instead of as its content.")
    generate_summary: Literal["auto", "detailed"] | None = optional("Older name of summary.")
    context: Annotated[Any, NoOp("auto")] = None
    mode: Annotated[Any, NoOp("standard")] = None
