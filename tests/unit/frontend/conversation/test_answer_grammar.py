"""Grammars of tool calls: what they accept is what the parser of the same format reads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from support.drivers.output import merged, run_stage
from triptych.errors import InvalidRequestError
from triptych_frontend.conversation.events import Event, ToolArguments, ToolCallEnded, ToolCallStarted
from triptych_frontend.conversation.formats.calls import ParserOptions
from triptych_frontend.conversation.formats.grammar import AnswerGrammar, AnswerShape
from triptych_frontend.conversation.formats.known import OLD_MISTRAL, TOOL_FORMATS, reasoning_format_of, tool_format_of
from triptych_frontend.conversation.formats.parser import FormatParser
from triptych_frontend.conversation.formats.table import FormatTable, ToolFormat
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, closed_schema

SCHEMA = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/number"}, "b": {"type": "string"}},
    "required": ["b"],
    "$defs": {"number": {"type": "integer"}},
}
TOOLS = [
    CallableTool("f", closed_schema(SCHEMA), "tools[0]"),
    CallableTool("g.h", closed_schema({"type": "object", "properties": {}}), "tools[1]"),
]

# format, one call, two calls, wrong arguments
WRITTEN = [
    (
        TOOL_FORMATS["hermes"],
        '<tool_call>\n{"name": "f", "arguments": {"a": 1, "b": "x"}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"a": 1, "b": "x"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g.h", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    ),
    (
        TOOL_FORMATS["llama3_json"],
        '{"name": "f", "parameters": {"a": 1, "b": "x"}}',
        '{"name": "f", "parameters": {"a": 1, "b": "x"}}; {"name": "g.h", "parameters": {}}',
        '{"name": "f", "parameters": {"b": 1}}',
    ),
    (
        TOOL_FORMATS["mistral"],
        '[TOOL_CALLS]f[ARGS]{"a": 1, "b": "x"}',
        '[TOOL_CALLS]f[ARGS]{"a": 1, "b": "x"}[TOOL_CALLS]g.h[ARGS]{}',
        '[TOOL_CALLS]f[ARGS]{"c": 1, "b": "x"}',
    ),
    (
        OLD_MISTRAL,
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1, "b": "x"}}]',
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1, "b": "x"}}, {"name": "g.h", "arguments": {}}]',
        '[TOOL_CALLS][{"name": "h", "arguments": {}}]',
    ),
    (TOOL_FORMATS["pythonic"], '[f(a=1, b="x")]', '[f(a=1, b="x"), g.h()]', "[f(a=1)]"),
    (
        TOOL_FORMATS["json"],
        '[{"name": "f", "arguments": {"a": 1, "b": "x"}}]',
        '[{"name": "f", "arguments": {"a": 1, "b": "x"}}, {"name": "g.h", "arguments": {}}]',
        '[{"name": "f", "arguments": {"a": "1", "b": "x"}}]',
    ),
]


def accepts(grammar: str, text: str) -> bool:
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar))
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def forced(tools: ToolFormat, parallel: bool, given: Sequence[CallableTool] = TOOLS, **shape: Any) -> str:
    return AnswerGrammar(FormatTable(None, tools), {}).of(AnswerShape(given, is_forced=True, parallel=parallel, **shape))


def read(tools: ToolFormat, text: str) -> list[object]:
    numbers = itertools.count()
    options = ParserOptions(FormatTable(None, tools), tools={tool.name: tool.parameters for tool in TOOLS})
    return merged(run_stage(FormatParser(options, lambda: str(next(numbers))), list(text)))


def call(index: int, name: str, arguments: str) -> list[Event]:
    return [ToolCallStarted(index, str(index), name), ToolArguments(index, arguments), ToolCallEnded(index, True)]


@pytest.mark.parametrize(("tools", "one", "two", "wrong"), WRITTEN)
def test_a_forced_call_is_read_as_a_call(tools: ToolFormat, one: str, two: str, wrong: str) -> None:
    parallel, single = forced(tools, parallel=True), forced(tools, parallel=False)
    assert [accepts(parallel, text) for text in (one, two, wrong, "", "text")] == [True, True, False, False, False]
    assert [accepts(single, text) for text in (one, two)] == [True, False]
    assert read(tools, two) == [*call(0, "f", '{"a": 1, "b": "x"}'), *call(1, "g.h", "{}")]
    assert accepts(forced(tools, parallel=True, is_reasoning=True), "\n\n" + one)


@pytest.mark.parametrize(("tools", "one", "two", "wrong"), WRITTEN)
def test_a_model_may_end_behind_any_call(tools: ToolFormat, one: str, two: str, wrong: str) -> None:
    """Otherwise one that wants to end, where a closing marker or a further call would follow, repeats its call."""
    first = call(0, "f", '{"a": 1, "b": "x"}')
    between = tools.shape.between or ""
    space = "\n" if tools.shape.after and between.startswith(f"{tools.shape.after}\n") else ""
    for text in {one, one.removesuffix(tools.shape.after), one + space}:
        assert accepts(forced(tools, parallel=True), text), text
        assert read(tools, text) == first
    only = one.removesuffix(tools.shape.after)
    assert accepts(forced(tools, parallel=False), only) == (only == one), "a single call has its end"


@pytest.mark.parametrize(("tools", "one", "two", "wrong"), WRITTEN)
def test_where_the_model_chooses_text_and_calls_are_accepted(tools: ToolFormat, one: str, two: str, wrong: str) -> None:
    grammar = AnswerGrammar(FormatTable(None, tools), {}).of(AnswerShape(TOOLS))
    assert [accepts(grammar, text) for text in (one, two, wrong, "", "Text, < [ {.")] == [True, True, False, True, True]
    assert accepts(grammar, f"Look: {one}") or not tools.shape.before.startswith(tools.start or "?")


def test_special_tokens_are_tokens() -> None:
    grammars = AnswerGrammar(FormatTable(None, TOOL_FORMATS["mistral"]), {"[TOOL_CALLS]": 5, "[ARGS]": 32})
    grammar = grammars.of(AnswerShape(TOOLS, is_forced=True))
    assert grammar.splitlines()[0] == "start: <[5]> call (<[5]> call)*"
    assert 'call_0: "f" <[32]> arguments_0' in grammar
    free = grammars.of(AnswerShape(TOOLS, parallel=False))
    assert free.splitlines()[0] == "start: (TEXT | text_to_call call)"
    assert "text_to_call: TEXT_TO_CALL <[5]>" in free.splitlines()


def test_optional_arguments_of_a_pythonic_call_may_be_left_out() -> None:
    grammar = forced(TOOL_FORMATS["pythonic"], parallel=False)
    assert [accepts(grammar, text) for text in ('[f(b="x")]', '[f(, b="x")]', "[g.h()]", "[g.h(a=1)]")] == [
        True,
        False,
        True,
        False,
    ]


def test_a_schema_that_cannot_be_honoured_is_named() -> None:
    bad = CallableTool("f", {"properties": {"a": {"type": "nonsense"}}}, "tools[3].parameters_json_schema")
    with pytest.raises(InvalidRequestError, match="properties/a") as caught:
        forced(TOOL_FORMATS["hermes"], True, [bad])
    assert caught.value.field == "tools[3].parameters_json_schema"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ('return a json object within <tool_call></tool_call> tags:\n<tool_call>{"name": <function-name>', "hermes"),
        ("{{- '<|python_tag|>' + x }}", "llama3_json"),
        ('Respond in the format {"name": function name, "parameters": dictionary', "llama3_json"),
        ("{{ '[TOOL_CALLS][' }}", "mistral"),
        ("[func_name1(params_name1=params_value1, ...), func_name2(params)]", "pythonic"),
        ("{{ '<|tool_call|>' }}", "granite"),
        ("{{ tools | tojson }}", "json"),
    ],
)
def test_a_template_shows_its_format(template: str, name: str) -> None:
    assert tool_format_of(template).name == name


def test_a_template_or_a_token_shows_the_reasoning() -> None:
    assert reasoning_format_of("{{ '<think>\n' }}", ()) is not None
    found = reasoning_format_of("", {"[THINK]", "[/THINK]"})
    assert found is not None
    assert found.name == "mistral"
    assert reasoning_format_of("{{ messages }}", {"<s>"}) is None


@pytest.mark.parametrize("name", ["", "a(b", "a=b", 'a"', "a,b", " a", "a\\b"])
def test_a_name_that_no_python_call_can_have_is_refused(name: str) -> None:
    tool = CallableTool("f", {"type": "object", "properties": {name: {}}}, "tools[3].parameters_json_schema")
    with pytest.raises(InvalidRequestError, match="cannot be the name of an argument") as caught:
        forced(TOOL_FORMATS["pythonic"], True, [tool])
    assert caught.value.field == tool.field
    assert forced(TOOL_FORMATS["hermes"], True, [tool])
