"""Grammars of whole answers, in llguidance's dialect of Lark: reasoning, tool calls in a model's own format, and text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from triptych.v1 import common_pb2
from triptych_common.constraints.compiler import json_rule
from triptych_common.constraints.messages import to_spec

from triptych_frontend.conversation.formats.table import FormatTable
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, Literals, in_slashes, regex_of, sequence
from triptych_frontend.errors import refusal

_ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True)
class AnswerShape:
    """What the answers to one request may be.

    Args:
        tools: the tools that may be called.
        is_forced: the answer must be a call.
        parallel: it may have more calls than one.
        text: what text must look like; None for any.
        may_reason: the model may reason first. Its prompt does not begin the reasoning.
        is_reasoning: the prompt begins the reasoning, and this grammar holds behind it.
    """

    tools: Sequence[CallableTool] = ()
    is_forced: bool = False
    parallel: bool = True
    text: common_pb2.Constraint | None = None
    may_reason: bool = False
    is_reasoning: bool = False


class AnswerGrammar:
    """Writes the grammars of one model.

    Args:
        special_ids: text -> id of the tokenizer's special tokens. In a grammar they are not text.
    """

    def __init__(self, table: FormatTable, special_ids: Mapping[str, int]) -> None:
        self._tools = table.tools
        self._reasoning = table.reasoning
        self._answer = table.reasoning.answer if table.reasoning is not None else ""
        self._literals = Literals({text: special_ids[text] for text in table.markers if text in special_ids})

    def of(self, shape: AnswerShape) -> str:
        """The grammar. Raises InvalidRequestError if a schema cannot be honoured."""
        rules = list[str]()
        before = self._before(shape, rules)
        answers = [] if shape.is_forced else self._texts(shape, rules)
        # Where text may stand before calls, the alternatives have them already.
        if shape.tools and (not answers or shape.text is not None or self._answer):
            answers.insert(0, self._calls(shape.parallel))
        rules += self._tool_rules(shape.tools)
        either = " | ".join(answers)
        return "\n".join([f"start: {sequence(before, either if len(answers) == 1 and not before else f'({either})')}", *rules])

    def _before(self, shape: AnswerShape, rules: list[str]) -> str:
        """What stands before the answer."""
        if shape.is_reasoning:
            return r"/\n{0,3}/"
        if self._reasoning is None or not shape.may_reason:
            return ""
        rules += self._literals.until("thoughts", self._reasoning.ends[0])
        starts = " | ".join(map(self._literals, self._reasoning.starts))
        return rf"(({starts}) thoughts /\n{{0,3}}/)?"

    def _texts(self, shape: AnswerShape, rules: list[str]) -> list[str]:
        """The alternatives that are not only calls."""
        answer = self._literals(self._answer)
        if shape.text is not None:
            rules += _text_rules(shape.text)
            return [sequence(answer, "text")]
        if self._answer or not shape.tools or self._tools is None:
            rules.append("TEXT: /(?s:.*)/")
            return [sequence(answer, "TEXT")]
        # What is text here must be text to the parser too: no beginning of reasoning or of a call, no marker of a call.
        thoughts = self._reasoning.starts if self._reasoning is not None and shape.may_reason else ()
        barred = [regex_of(start.rstrip()) for start in thoughts if not self._literals.has_special(start)]
        barred += [f"[{re.escape(self._tools.openers)}]"] if self._tools.openers else []
        start, begins = self._tools.start, rf"\s*({'|'.join(barred)})(?s:.*)" if barred else ""
        parts = ["/(?s:.*)/"] + ([f"~/{begins}/"] if begins else [])
        if start and not self._literals.has_special(start):
            parts.append(f"~/(?s:.*){regex_of(start)}(?s:.*)/")
        rules.append(f"TEXT: {' & '.join(parts)}")
        if not start or not self._tools.shape.before.startswith(start):
            # Calls are told from text by their first character.
            return ["TEXT", self._calls(shape.parallel)]
        rules += self._literals.until("text_to_call", start, but=begins)
        return ["TEXT", sequence("text_to_call", self._calls(shape.parallel, is_marked=True))]

    def _calls(self, parallel: bool, is_marked: bool = False) -> str:
        """is_marked: the marker before the calls is written already."""
        if self._tools is None:
            return ""
        shape = self._tools.shape
        before = shape.before.removeprefix(self._tools.start) if is_marked else shape.before
        after = self._literals(shape.after)
        if shape.between is None or not parallel:
            return sequence(self._literals(before), "call", after)
        # A model that ends behind a call, or behind the white space before another one, has called what it wanted. Where a further
        # call begins with what may stand at the end, that is written apart: the grammar's tokens are the longest that fit.
        opening = shape.between.removeprefix(shape.after)
        space = opening[: len(opening) - len(opening.lstrip())] if after and opening != shape.between else ""
        apart = [self._literals(text) for text in (shape.between.removesuffix(opening), space, opening.removeprefix(space))]
        end = sequence(after, f"{self._literals(space)}?" if space else "")
        return sequence(self._literals(before), "call", f"({sequence(*apart, 'call')})*", f"({end})?" if end else "")

    def _tool_rules(self, tools: Sequence[CallableTool]) -> list[str]:
        if not tools or self._tools is None:
            return []
        rules = ["call: " + " | ".join(f"call_{number}" for number in range(len(tools)))]
        for number, tool in enumerate(tools):
            rules += self._tools.syntax.rules(number, tool, self._literals)
        return rules


def _text_rules(constraint: common_pb2.Constraint) -> list[str]:
    """The rule `text` for a constraint, and the rules that it uses. Raises InvalidRequestError."""
    field = "options.constraint"
    kind = to_spec(constraint, field).kind
    if kind == "json_schema":
        return [f"text: {json_rule(constraint.json_schema, f'{field}.json_schema')}"]
    if kind == "json_object":
        return [f"text: {json_rule(_ANY_OBJECT, f'{field}.json_object')}"]
    if kind == "choice":
        return ["text: " + " | ".join(json.dumps(value) for value in constraint.choice.values)]
    if kind == "regex":
        return ["text: TEXT", f"TEXT: /{in_slashes(constraint.regex)}/"]
    raise refusal(f"{field}.grammar", "cannot be combined with tools or reasoning: it must describe the whole answer")
