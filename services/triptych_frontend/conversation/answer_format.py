"""How the answers to a conversation are read, and which form they must have: reasoning, tool calls, constraints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2

from triptych_frontend.conversation.formats.calls import ParserOptions
from triptych_frontend.conversation.formats.grammar import AnswerGrammar, AnswerShape
from triptych_frontend.conversation.formats.table import FormatTable, ReasoningFormat, ToolFormat
from triptych_frontend.conversation.reasoning import ReasoningLimit
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, closed_schema
from triptych_frontend.conversation.tools import FunctionTool, ToolOptions
from triptych_frontend.tokens.tokenizer import Tokenizer

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


class AnswerFormats:
    """Finds the format of each request's answers.

    Args:
        tools: how the model writes calls; None if that is not known.
        reasoning: how it writes what it thinks; None if it does not.
    """

    def __init__(self, tokenizer: Tokenizer, tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> None:
        #: The tokens of each text that ends the reasoning.
        self._ends = [tuple(tokenizer.encode_inner(end)) for end in (reasoning.ends if reasoning is not None else ())]
        self._tools = tools
        self._reasoning = reasoning
        #: Without tools, and with them.
        self._tables = FormatTable(reasoning, None), FormatTable(reasoning, tools)
        self._grammars = [AnswerGrammar(table, tokenizer.special_ids) for table in self._tables]

    def of(self, request: generation_pb2.ChatRequest, tools: ToolOptions, prompt: str) -> AnswerFormat:
        """The format of a request's answers. It compiles no grammar, but may take milliseconds for large schemas.

        Args:
            tools: those of the request.
            prompt: the rendered conversation.

        Raises:
            InvalidRequestError: a schema cannot be honoured, the constraint cannot be combined with tools or reasoning, or the
                reasoning cannot be limited.
        """
        if tools.allowed and self._tools is None:
            raise InvalidRequestError(
                "tool calls are switched off here; start the frontend with another --tool-call-parser", field="tools"
            )
        table = self._tables[bool(tools.allowed)]
        is_reasoning, is_behind_reasoning = self._is_reasoning(request, prompt)
        prompt_end: tuple[int, ...] = ()
        if is_reasoning and request.reasoning.HasField("max_tokens") and request.reasoning.max_tokens == 0:
            prompt_end, is_reasoning, is_behind_reasoning = min(self._ends, key=len), False, True
        parser = None
        if table.tools is not None or table.reasoning is not None:
            schemas = {tool.name: tool.parameters for tool in tools.allowed}
            parser = ParserOptions(table, is_reasoning, schemas, tools.is_single, is_behind_reasoning=bool(prompt_end))
        constraint = self._constraint(request, tools, is_reasoning, is_behind_reasoning)
        return AnswerFormat(parser, constraint, self._limit(request, constraint), prompt_end)

    def _is_reasoning(self, request: generation_pb2.ChatRequest, prompt: str) -> tuple[bool, bool]:
        """Whether the answer begins inside of the reasoning, and whether it begins behind it."""
        reasoning = self._reasoning
        if reasoning is None:
            return False, False
        if request.continue_final_message:
            # Only this message counts: in others, the markers may be a user's text.
            last = "\n".join(part.text for part in request.messages[-1].content)
            is_open = _last_of(last, reasoning.starts) > _last_of(last, reasoning.ends)
            return is_open, not is_open
        end = prompt.rstrip()
        is_behind = end.endswith(reasoning.ends)
        return end.endswith(tuple(start.rstrip() for start in reasoning.starts)) or (reasoning.is_open and not is_behind), is_behind

    def _constraint(
        self, request: generation_pb2.ChatRequest, tools: ToolOptions, is_reasoning: bool, is_behind_reasoning: bool
    ) -> common_pb2.Constraint | None:
        own = request.options.constraint if request.options.HasField("constraint") else None
        if own is None and not tools.is_forced and not any(tool.strict for tool in tools.allowed):
            return None
        own_starts = own.starts_after_token_ids if own is not None and not tools.is_forced else ()
        # A limited reasoning ends in a second request, whose constraint would let the model reason again.
        is_settled = is_reasoning or is_behind_reasoning or own_starts or request.reasoning.HasField("max_tokens")
        may_reason = not (is_settled or request.reasoning.effort == "none")
        constraint = common_pb2.Constraint()
        is_raw = self._reasoning is None or not may_reason or (own is not None and own.HasField("grammar"))
        if own is not None and not tools.allowed and is_raw:
            constraint.CopyFrom(own)
        else:
            # Where a call is forced, there is no text that a constraint could describe.
            text = None if tools.is_forced else own
            shape = AnswerShape(
                self._callable(request, tools),
                tools.is_forced,
                not tools.is_single,
                text,
                may_reason=may_reason,
                is_reasoning=is_reasoning,
            )
            constraint.grammar = self._grammars[bool(tools.allowed)].of(shape)
            constraint.starts_after_token_ids.extend(own_starts)
        if is_reasoning and not constraint.starts_after_token_ids:
            constraint.starts_after_token_ids.extend(self._ends_of_reasoning())
        return constraint

    def _limit(self, request: generation_pb2.ChatRequest, constraint: common_pb2.Constraint | None) -> ReasoningLimit | None:
        if self._reasoning is None or not request.reasoning.HasField("max_tokens"):
            return None
        end = min(self._ends, key=len)
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

    def _callable(self, request: generation_pb2.ChatRequest, tools: ToolOptions) -> list[CallableTool]:
        fields = {tool.name: f"tools[{index}].parameters_json_schema" for index, tool in enumerate(request.tools)}
        try:
            return [CallableTool(tool.name, _arguments(tool, tools.is_forced), fields[tool.name]) for tool in tools.allowed]
        except RecursionError as error:
            raise InvalidRequestError("a tool's schema is nested too deeply", field="tools") from error

    def _ends_of_reasoning(self) -> list[int]:
        """The tokens each of which ends the reasoning. Raises InvalidRequestError if there are none."""
        ids = [end[0] for end in self._ends if len(end) == 1]
        if not ids:
            message = "answers cannot be constrained while this model reasons, because no single token ends its reasoning"
            raise InvalidRequestError(message, field="options")
        return ids


def _arguments(tool: FunctionTool, is_forced: bool) -> Mapping[str, Any]:
    """The JSON Schema of a call's arguments."""
    return closed_schema(tool.parameters) if is_forced or tool.strict else _ANY_ARGUMENTS


def _last_of(text: str, markers: tuple[str, ...]) -> int:
    return max(text.rfind(marker) for marker in markers)
