"""How the answers to a conversation are read, and which form they must have: reasoning, tool calls, constraints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from triptych.errors import InvalidRequestError, StartupError
from triptych.v1 import common_pb2, generation_pb2

from triptych_frontend.generation.sampling import ReasoningLimit
from triptych_frontend.output.formats.grammar import CallableTool, CallGrammar, closed_schema
from triptych_frontend.output.formats.known import (
    OLD_MISTRAL_SHAPE,
    REASONING_FORMATS,
    TOOL_FORMATS,
    reasoning_format_of,
    tool_format_of,
)
from triptych_frontend.output.formats.parser import ParserOptions
from triptych_frontend.output.formats.table import FormatTable, ReasoningFormat, ToolFormat
from triptych_frontend.prompt.chat_template import ChatTemplate
from triptych_frontend.prompt.preprocess import Prompt
from triptych_frontend.prompt.tools import FunctionTool, ToolOptions
from triptych_frontend.tokens.tokenizer import Tokenizer

T = TypeVar("T")
#: Of a tool that is not strict, where the model chooses freely.
_ANY_ARGUMENTS = {"type": "object"}


@dataclass(frozen=True)
class AnswerFormat:
    """How the answers of one request are read, and what the engine must make them look like."""

    parser: ParserOptions | None
    constraint: common_pb2.Constraint | None
    #: Of the reasoning; None for no limit.
    limit: ReasoningLimit | None = None
    #: Tokens to add to the prompt: they end reasoning that it leaves open.
    prompt_end: tuple[int, ...] = ()


def choose_formats(
    template: ChatTemplate, tokenizer: Tokenizer, tool_call_parser: str, reasoning_parser: str
) -> tuple[ToolFormat | None, ReasoningFormat | None]:
    """The formats of a model, by name, or, for `auto`, by its template and its tokens. Raises StartupError for unknown names."""
    source = template.source or ""
    tokens = {token.content for token in tokenizer.added_tokens.values()}
    tools = reasoning = None
    if tool_call_parser == "auto":
        tools = tool_format_of(template.tool_source or "") if template.takes_tools else None
    elif tool_call_parser != "none":
        tools = _named(TOOL_FORMATS, tool_call_parser, "tool_call_parser")
    if reasoning_parser == "auto":
        reasoning = reasoning_format_of(source, tokens)
    elif reasoning_parser != "none":
        reasoning = _named(REASONING_FORMATS, reasoning_parser, "reasoning_parser")
    if tools is not None and tools.name == "mistral" and "[ARGS]" not in tokens:
        tools = replace(tools, shape=OLD_MISTRAL_SHAPE)
    return tools, reasoning


class AnswerFormats:
    """Finds the format of each request's answers.

    Args:
        tools: how the model writes calls; None if that is not known.
        reasoning: how it writes what it thinks; None if it does not.
    """

    def __init__(self, tokenizer: Tokenizer, tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> None:
        self._tokenizer = tokenizer
        self._tools = tools
        self._reasoning = reasoning
        self._with_tools = FormatTable(reasoning, tools)
        self._without_tools = FormatTable(reasoning, None)
        self._special_ids = {token.content: token_id for token_id, token in tokenizer.added_tokens.items() if token.special}

    def of(self, request: generation_pb2.ChatRequest, prompt: Prompt) -> AnswerFormat:
        """The format of a request's answers. It compiles no grammar, but may take milliseconds for large schemas.

        Raises:
            InvalidRequestError: a schema cannot be honoured, the calls cannot be read or forced, there is a further constraint, or
                the reasoning cannot be limited.
        """
        tools = prompt.tools
        if tools.allowed and self._tools is None:
            raise InvalidRequestError(
                "the format of this model's tool calls is not known; start the frontend with --tool-call-parser", field="tools"
            )
        table = self._with_tools if tools.allowed else self._without_tools
        is_reasoning = self._is_reasoning(request, prompt.text)
        prompt_end: tuple[int, ...] = ()
        if is_reasoning and request.reasoning.HasField("max_tokens") and request.reasoning.max_tokens == 0:
            prompt_end, is_reasoning = self._end_of_reasoning(), False
        parser = None
        if table.tools is not None or table.reasoning is not None:
            names = frozenset(tool.name for tool in tools.allowed)
            parser = ParserOptions(table, is_reasoning, names, not tools.parallel, is_behind_reasoning=bool(prompt_end))
        constraint = self._constraint(request, tools, is_reasoning)
        return AnswerFormat(parser, constraint, self._limit(request, constraint), prompt_end)

    def _is_reasoning(self, request: generation_pb2.ChatRequest, prompt: str) -> bool:
        """Whether the answer begins inside of the reasoning."""
        reasoning = self._reasoning
        if reasoning is None:
            return False
        if request.continue_final_message:
            # Only this message counts: in others, the markers may be a user's text.
            last = "\n".join(part.text for part in request.messages[-1].content)
            return _last_of(last, reasoning.starts) > _last_of(last, reasoning.ends)
        end = prompt.rstrip()
        return end.endswith(reasoning.starts) or (reasoning.is_open and not end.endswith(reasoning.ends))

    def _constraint(
        self, request: generation_pb2.ChatRequest, tools: ToolOptions, is_reasoning: bool
    ) -> common_pb2.Constraint | None:
        own = request.options.constraint if request.options.HasField("constraint") else None
        is_strict = any(tool.strict for tool in tools.allowed)
        if self._tools is None or not (tools.is_forced or is_strict):
            if own is None or own.starts_after_token_ids or not is_reasoning:
                return own
            constraint = common_pb2.Constraint()
            constraint.CopyFrom(own)
        else:
            if own is not None:
                what = "tool_choice requires a call" if tools.is_forced else "a tool is strict"
                raise InvalidRequestError(f"options.constraint cannot be honoured where {what}", field="options.constraint")
            constraint = common_pb2.Constraint(grammar=self._grammar(request, tools, self._tools, is_reasoning))
        if is_reasoning:
            constraint.starts_after_token_ids.extend(self._ends_of_reasoning())
        return constraint

    def _limit(self, request: generation_pb2.ChatRequest, constraint: common_pb2.Constraint | None) -> ReasoningLimit | None:
        if self._reasoning is None or not request.reasoning.HasField("max_tokens"):
            return None
        end = self._end_of_reasoning()
        if constraint is not None:
            starts = set(constraint.starts_after_token_ids)
            if not starts:
                return None  # it leaves no place for reasoning
            if len(end) > 1 or end[0] not in starts or not starts <= set(self._ends_of_reasoning()):
                raise InvalidRequestError(
                    "reasoning.max_tokens cannot be honoured beside a constraint that begins elsewhere than behind the reasoning",
                    field="options.constraint.starts_after_token_ids",
                )
        return ReasoningLimit(request.reasoning.max_tokens, end)

    def _end_of_reasoning(self) -> tuple[int, ...]:
        """The tokens that end the reasoning: one, if that is possible."""
        ends = self._reasoning.ends if self._reasoning is not None else ()
        return min((tuple(self._tokenizer.encode_inner(end)) for end in ends), key=len)

    def _grammar(self, request: generation_pb2.ChatRequest, tools: ToolOptions, tool_format: ToolFormat, is_reasoning: bool) -> str:
        fields = {tool.name: f"tools[{index}].parameters_json_schema" for index, tool in enumerate(request.tools)}
        callable_tools = [CallableTool(tool.name, _arguments(tool, tools.is_forced), fields[tool.name]) for tool in tools.allowed]
        grammar = CallGrammar(tool_format, self._special_ids)
        if tools.is_forced:
            return grammar.forced(callable_tools, tools.parallel, is_reasoning)
        return grammar.free(callable_tools, tools.parallel)

    def _ends_of_reasoning(self) -> list[int]:
        """The tokens each of which ends the reasoning. Raises InvalidRequestError if there are none."""
        ends = self._reasoning.ends if self._reasoning is not None else ()
        ids = [token_ids[0] for end in ends if len(token_ids := self._tokenizer.encode_inner(end)) == 1]
        if not ids:
            raise InvalidRequestError(
                "answers cannot be constrained while this model reasons, because no single token ends its reasoning",
                field="options",
            )
        return ids


def _arguments(tool: FunctionTool, is_forced: bool) -> Mapping[str, Any]:
    """The JSON Schema of a call's arguments."""
    return closed_schema(tool.parameters) if is_forced or tool.strict else _ANY_ARGUMENTS


def _last_of(text: str, markers: tuple[str, ...]) -> int:
    return max(text.rfind(marker) for marker in markers)


def _named(formats: Mapping[str, T], name: str, setting: str) -> T:
    if name not in formats:
        raise StartupError(f"{setting} must be auto, none, or one of {', '.join(formats)}; given: {name!r}")
    return formats[name]
