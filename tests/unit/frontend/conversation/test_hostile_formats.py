"""Texts and schemas that try to lose, invent or delay something."""

from __future__ import annotations

import itertools
import json
import time
from functools import cache
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from support.builders.tool_formats import WRITERS
from support.drivers.output import merged, run_stage
from triptych.errors import InvalidRequestError
from triptych_frontend.conversation.events import Text, ToolArguments, ToolCallEnded, ToolCallStarted
from triptych_frontend.conversation.formats.calls import ParserOptions
from triptych_frontend.conversation.formats.grammar import AnswerGrammar, AnswerShape
from triptych_frontend.conversation.formats.harmony import HarmonyParser
from triptych_frontend.conversation.formats.known import REASONING_FORMATS, TOOL_FORMATS
from triptych_frontend.conversation.formats.parser import FormatParser
from triptych_frontend.conversation.formats.table import FormatTable
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, closed_schema

OPEN: dict[str, Any] = {"type": "object"}
TOKENIZER = LLTokenizer("byte")


def read(name: str, text: str, schema: Any = OPEN, reasoning: str = "") -> list[object]:
    numbers = itertools.count()
    table = FormatTable(REASONING_FORMATS.get(reasoning), TOOL_FORMATS[name])
    stage = HarmonyParser if table.is_harmony else FormatParser
    return merged(run_stage(stage(ParserOptions(table, tools={"f": schema}), lambda: f"id{next(numbers)}"), list(text)))


def calls(events: list[object]) -> list[str]:
    return [event.text for event in events if isinstance(event, ToolArguments)]


@cache
def compiled(grammar: str) -> LLMatcher:
    matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_lark(grammar))
    assert not matcher.get_error(), matcher.get_error()
    return matcher


def accepts(name: str, schema: Any, text: str, **shape: Any) -> bool:
    table = FormatTable(REASONING_FORMATS["qwen3"] if shape.get("may_reason") else None, TOOL_FORMATS[name])
    tools = [CallableTool("f", schema, "tools[0]")]
    matcher = compiled(AnswerGrammar(table, {}).of(AnswerShape(tools, **shape))).deep_copy()
    tokens = TOKENIZER.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def forced(name: str, schema: Any, arguments: dict[str, Any]) -> bool:
    return accepts(name, schema, WRITERS[name]([("f", arguments)]), is_forced=True)


def of(**properties: Any) -> dict[str, Any]:
    return closed_schema({"type": "object", "properties": properties, "required": list(properties)})


@pytest.mark.parametrize(
    "text",
    [
        "<|channel|>final<|message|>The token <|channel|> is a marker.",
        "<|channel|>final<|message|>The token <|channel|> " + "x " * 300,
        "a<|end|><|start|>assistant to=functions.f and so on",
        "<|channel|>final<|message|>a<|end|>" + "<|start|>" * 100 + "b",
    ],
)
def test_words_beside_markers_of_harmony_are_kept(text: str) -> None:
    shown = "".join(str(event) for event in read("openai", text))
    assert shown.endswith(text[-10:])


def test_analysis_that_quotes_a_call_makes_none() -> None:
    text = "<|channel|>analysis<|message|>e.g. <|channel|>commentary to=functions.f<|message|>{}<|end|>"
    assert not any(isinstance(event, ToolCallStarted) for event in read("openai", text))


CIRCLE = {"$defs": {"D": {"anyOf": [{"$ref": "#/$defs/D"}] * 6}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/D"}}}
TREE = {
    "$defs": {
        f"D{level}": {"type": "object", "properties": {key: {"$ref": f"#/$defs/D{level + 1}"} for key in "ab"}}
        for level in range(28)
    }
    | {"D28": {"type": "integer"}},
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/D0"}},
}


@pytest.mark.parametrize("schema", [CIRCLE, TREE])
@pytest.mark.parametrize("name", ["qwen3_coder", "gemma4"])
def test_schemas_that_refer_to_themselves_or_widely_take_no_time(name: str, schema: Any) -> None:
    start_s = time.process_time()
    read(name, WRITERS[name]([("f", {"a": 1})]), schema)
    try:
        grammar = AnswerGrammar(FormatTable(None, TOOL_FORMATS[name]), {}).of(AnswerShape([CallableTool("f", schema, "x")], True))
        assert len(grammar) < 100_000
    except InvalidRequestError:
        assert schema is CIRCLE
    assert time.process_time() - start_s < 1


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "glm47", "minimax_m2", "deepseek_v32", "gemma4"])
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "abcd", "a b"], ["a", "abcde"]),
        ({"type": "string", "pattern": "^https?://"}, ["https://x", "http://a/b c"], ["ftp://x"]),
        ({"type": "string", "pattern": "o/o"}, ["fo/od"], ["food"]),
        ({"type": "string", "pattern": r"^a\/b\S+$"}, ["a/bcd"], ["a/b c"]),
        ({"type": "string", "enum": ["x y", "z"]}, ["x y", "z"], ["x"]),
        ({"enum": ["x", 1, None]}, ["x", 1, None], ["y", 2]),
        ({"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "null"}]}, ["x", None], ["y"]),
        ({"anyOf": [{"type": "integer", "maximum": 3}, {"type": "null"}]}, [3, None], [99]),
        ({"type": ["integer", "string"], "maximum": 3, "maxLength": 1}, [3, "x"], [99]),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [1, 2, 3]]),
    ],
)
def test_what_a_schema_says_is_enforced(name: str, schema: Any, good: list[Any], bad: list[Any]) -> None:
    assert [forced(name, of(a=schema), {"a": value}) for value in good] == [True] * len(good)
    assert not any(forced(name, of(a=schema), {"a": value}) for value in bad)


@pytest.mark.parametrize("name", ["qwen3_coder", "gemma4"])
@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        (of(a={"type": "string", "format": "date"}), "format"),
        (of(a={"type": "string", "pattern": "^a|b$"}), "pattern"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "required"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "additionalProperties"),
        ({"type": "object", "patternProperties": {"a": {}}}, "patternProperties"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(name: str, schema: Any, keyword: str) -> None:
    with pytest.raises(InvalidRequestError, match=keyword):
        forced(name, schema, {})


def test_arguments_behind_a_reference_are_known() -> None:
    schema = {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}
    assert accepts("pythonic", schema, "[f(a=1)]", is_forced=True)
    assert calls(read("qwen3_coder", WRITERS["qwen3_coder"]([("f", {"a": 5})]), schema)) == ['{"a": 5}']
    assert accepts("pythonic", OPEN, '[f(b=1, c="x")]', is_forced=True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<think>\nI could use <tool_call> here\n</think>\n\nhello"),
        ("llama3_json", "Hello."),
        ("llama3_json", "  "),
        ("pythonic", "It is (1)."),
    ],
)
def test_text_is_accepted_where_the_model_chooses(name: str, text: str) -> None:
    assert accepts(name, of(a={"type": "integer"}), text, may_reason=True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<think>\nx <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'),
        ("llama3_json", '<think>x</think>{"name": "f", "parameters": {"b": 1}}'),
        ("llama3_json", ' {"name": "f", "parameters": {"b": 1}}'),
        ("llama3_json", 'x<|python_tag|>{"name": "f", "parameters": {"b": 1}}'),
        ("llama4_pythonic", '[f(bad="x")]'),
        ("pythonic", '\n[f(bad="x")]'),
    ],
)
def test_text_cannot_hide_a_call(name: str, text: str) -> None:
    assert not accepts(name, of(a={"type": "integer"}), text, may_reason=True)


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        # The end of the section is missing.
        ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>", ""),
        ("kimi_k2", WRITERS["kimi_k2"]([("f", {})]).removesuffix("<|tool_calls_section_end|>"), ""),
        # There is no call in it.
        ("qwen3_coder", "<tool_call></tool_call>", "<tool_call></tool_call>"),
        # A marker that is only mentioned.
        ("qwen3_coder", "<tool_call>\n" + WRITERS["qwen3_coder"]([("f", {})]), "<tool_call>"),
        ("mistral", "The marker [TOOL_CALLS] precedes calls. [TOOL_CALLS]f[ARGS]{}", "The marker [TOOL_CALLS] precedes calls."),
    ],
)
def test_markers_without_their_calls(name: str, text: str, shown: str) -> None:
    events = read(name, text)
    assert "".join(event for event in events if isinstance(event, str)) == shown
    assert len(calls(events)) == (0 if text == shown else 1)


def test_values_end_at_their_tag() -> None:
    text = "<tool_call>\n<function=f>\n<parameter=a>\nabc</parameter>\n<parameter=b>\nx\n</parameter>\n</function>\n</tool_call>"
    assert [json.loads(one) for one in calls(read("qwen3_coder", text))] == [{"a": "abc", "b": "x"}]
    broken = read("gemma4", "<|tool_call>call:f{a:,b:1}<tool_call|>")
    assert [event.is_complete for event in broken if isinstance(event, ToolCallEnded)] == [False]


def test_ids_that_the_model_repeats_are_made_anew() -> None:
    events = read("kimi_k2", WRITERS["kimi_k2"]([("f", {}), ("f", {})]).replace(":1", ":0"))
    assert [event.call_id for event in events if isinstance(event, ToolCallStarted)] == ["functions.f:0", "id0"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n[" + "1, " * 60_000),
        ("gemma4", "<|tool_call>call:f{a:[" + "1," * 60_000),
        ("llama3_json", '{"' + "x" * 150_000),
        ("llama3_json", '{"id": "' + "x" * 150_000),
        ("pythonic", '[f(a="' + "x" * 150_000),
        ("mistral", "[TOOL_CALLS] " * 15_000),
        ("hermes", '<tool_call>{"id": "' * 8_000),
        ("openai", "<|channel|>" * 15_000),
    ],
)
def test_costs_are_linear(name: str, text: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array"}}}
    table = FormatTable(None, TOOL_FORMATS[name])
    stage = (HarmonyParser if table.is_harmony else FormatParser)(ParserOptions(table, tools={"f": schema}))
    start_s = time.process_time()
    for start in range(0, len(text), 7):
        stage.feed(Text(text[start : start + 7], 1))
    stage.finish()
    assert time.process_time() - start_s < 3
