"""The tools of a request: checked, and as chat templates get them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from triptych.v1 import generation_pb2
from triptych_common.constraints.messages import MAX_CONSTRAINT_BYTES
from triptych_common.limits import MAX_TOOL_NAME_CHARS

from triptych_frontend.errors import check_count, refusal

_NAME = re.compile(rf"[\w.:/-]{{1,{MAX_TOOL_NAME_CHARS}}}")
_Mode = generation_pb2.ToolChoice.Mode
#: Of a tool that declares no parameters.
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class FunctionTool:
    """A function that the model may call."""

    name: str
    description: str | None
    #: JSON Schema of the arguments.
    parameters: dict[str, Any]
    strict: bool

    def as_openai(self) -> dict[str, Any]:
        """The tool in OpenAI's form, which chat templates are written for."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": function | {"parameters": self.parameters}}


@dataclass(frozen=True)
class ToolOptions:
    """The tools of a request, and which of them may be called."""

    tools: tuple[FunctionTool, ...] = ()
    mode: generation_pb2.ToolChoice.Mode = _Mode.MODE_AUTO
    #: Only these may be called; empty for all.
    allowed_names: frozenset[str] = frozenset()
    #: One turn may call several tools.
    parallel: bool = True

    @cached_property
    def allowed(self) -> tuple[FunctionTool, ...]:
        """The tools that may be called."""
        if self.mode == _Mode.MODE_NONE:
            return ()
        return tuple(tool for tool in self.tools if not self.allowed_names or tool.name in self.allowed_names)

    @property
    def is_forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.mode == _Mode.MODE_REQUIRED

    @property
    def is_single(self) -> bool:
        """Whether an answer may have only one call. A choice that names a tool asks for one call of it."""
        return not self.parallel or (self.is_forced and len(self.allowed_names) == 1)

    @property
    def rendered(self) -> list[dict[str, Any]] | None:
        """The tools for the template; None if it gets none.

        A choice that is forced, or forbids calls, shows all tools, so that the prompt stays the same and its prefix in the cache.
        Where the model chooses freely, it sees only what it may choose.
        """
        shown = self.allowed if self.mode == _Mode.MODE_AUTO else self.tools
        return [tool.as_openai() for tool in shown] or None


def tool_options(request: generation_pb2.ChatRequest) -> ToolOptions:
    """The checked tools of a request. Raises InvalidRequestError, which names the field."""
    tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(request.tools))
    _check_unique([tool.name for tool in tools])
    choice = request.tool_choice
    mode = choice.mode or _Mode.MODE_AUTO
    if mode not in _Mode.values():
        raise refusal("tool_choice.mode", f"is not known: {mode}", value=mode)
    if mode == _Mode.MODE_REQUIRED and not tools:
        raise refusal("tool_choice", "requires a call, but there are no tools")
    known = {tool.name for tool in tools}
    for index, name in enumerate(choice.allowed_names):
        if name not in known:
            problem = f"must be one of the tools; given: {name!r}"
            raise refusal(f"tool_choice.allowed_names[{index}]", problem, ", ".join(sorted(known)), name)
    parallel = request.parallel_tool_calls if request.HasField("parallel_tool_calls") else True
    return ToolOptions(tools, mode, frozenset(choice.allowed_names), parallel)


def template_tool_calls(calls: Sequence[generation_pb2.ToolCall], as_objects: bool = True) -> list[dict[str, Any]]:
    """Tool calls of the history, as templates get them.

    Args:
        as_objects: arguments are a dictionary if they are a JSON object. Some templates take their text instead.
    """
    return [
        {
            "type": "function",
            "id": call.id,
            "function": {"name": call.name, "arguments": _arguments(call.arguments) if as_objects else call.arguments or "{}"},
        }
        for call in calls
    ]


def _arguments(text: str) -> Any:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _tool(tool: generation_pb2.Tool, field: str) -> FunctionTool:
    if not _NAME.fullmatch(tool.name):
        problem = f"must have 1 to {MAX_TOOL_NAME_CHARS} letters, digits or any of . : / _ -; given: {tool.name!r}"
        raise refusal(f"{field}.name", problem, value=tool.name)
    parameters = _NO_PARAMETERS
    if tool.HasField("parameters_json_schema"):
        parameters = _schema(tool.parameters_json_schema, f"{field}.parameters_json_schema")
    description = tool.description if tool.HasField("description") else None
    return FunctionTool(tool.name, description, parameters, tool.strict)


def _schema(text: str, field: str) -> dict[str, Any]:
    # The JSON parser holds all threads up.
    check_count(field, len(text), MAX_CONSTRAINT_BYTES, "characters")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refusal(field, f"must be JSON: {error}") from error
    if not isinstance(schema, dict):
        raise refusal(field, "must be a JSON object")
    return schema


def _check_unique(names: Iterable[str]) -> None:
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if seen.setdefault(name, index) != index:
            raise refusal(f"tools[{index}].name", f"is that of tools[{seen[name]}]: {name!r}", value=name)
