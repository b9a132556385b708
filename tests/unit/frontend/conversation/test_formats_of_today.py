"""Each format of tool calls: what its models write is read, however it is cut, and is what a forced call may be."""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from support.builders.tool_formats import ENDS, WRITERS, Call
from support.drivers.output import merged, pieces_of, run_stage
from triptych_frontend.conversation.events import ToolArguments, ToolCallEnded, ToolCallStarted
from triptych_frontend.conversation.formats.calls import ParserOptions
from triptych_frontend.conversation.formats.grammar import AnswerGrammar, AnswerShape
from triptych_frontend.conversation.formats.known import TOOL_FORMATS, tool_format_of
from triptych_frontend.conversation.formats.parser import FormatParser
from triptych_frontend.conversation.formats.table import FormatTable
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, closed_schema

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "code": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "limit": {"type": "number"},
        "note": {"type": ["string", "null"]},
        "range": {"type": "array", "items": {"type": "integer"}},
        "shape": {"$ref": "#/$defs/shape"},
    },
    "$defs": {
        "shape": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
    },
    "required": ["city"],
}
TOOLS = {"get_weather": PARAMETERS, "files.read-all": {"type": "object", "properties": {}}}
CALLABLE = [CallableTool(name, closed_schema(parameters), "tools") for name, parameters in TOOLS.items()]

TEXTS = st.text(st.sampled_from('ab1 \t"\\<>/={}[](),:é漢'), max_size=6) | st.sampled_from(
    [
        "123_456",
        "12",
        "true",
        "null",
        "{}",
        "[1]",
        "a\nb",
        "\nedge\n",
        " space ",
        "<b>tag</b>",
        "</tool_call>",
        "<tool_call>",
        "```",
        "",
    ]
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "city": TEXTS,
    "code": TEXTS,
    "days": st.integers(-99, 99),
    "exact": st.booleans(),
    "limit": st.sampled_from([0.5, -2.25, 10.0]),
    "note": st.sampled_from(["word", "two words", None]),
    "range": st.lists(st.integers(0, 9), max_size=3),
    "shape": st.builds(lambda a, b: {"a": a, "b": b}, TEXTS, st.integers(0, 9)),
}


@st.composite
def weather_calls(draw: st.DrawFn, name: str) -> Call:
    """A call with some of the arguments, in the order of the schema."""
    keys = ["city", *draw(st.lists(st.sampled_from(list(VALUES)[1:]), unique=True, max_size=4))]
    arguments = {key: draw(VALUES[key]) for key in VALUES if key in keys}
    end = ENDS.get(name, "\0")
    return "get_weather", {key: _without(value, end) for key, value in arguments.items()}


def _without(value: Any, end: str) -> Any:
    if isinstance(value, dict):
        return {key: _without(item, end) for key, item in value.items()}
    return value.replace(end, "") if isinstance(value, str) else value


def read(name: str, pieces: list[str]) -> list[object]:
    numbers = itertools.count()
    options = ParserOptions(FormatTable(None, TOOL_FORMATS[name]), tools=TOOLS)
    return merged(run_stage(FormatParser(options, lambda: f"id{next(numbers)}"), pieces))


def read_calls(events: list[object]) -> list[tuple[str, Any, bool]]:
    """Name, arguments and completeness of each call. There is nothing else."""
    calls: list[tuple[str, Any, bool]] = []
    assert len(events) % 3 == 0, events
    for start in range(0, len(events), 3):
        started, arguments, ended = events[start : start + 3]
        assert isinstance(started, ToolCallStarted)
        assert isinstance(arguments, ToolArguments)
        assert isinstance(ended, ToolCallEnded)
        calls.append((started.name, json.loads(arguments.text), ended.is_complete))
    return calls


TOKENIZER = LLTokenizer("byte")


@cache
def compiled(grammar: str) -> LLMatcher:
    matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_lark(grammar))
    assert not matcher.get_error(), matcher.get_error()
    return matcher


def accepts(grammar: str, text: str) -> bool:
    matcher = compiled(grammar).deep_copy()
    tokens = TOKENIZER.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("name", WRITERS)
@given(data=st.data(), cuts=st.lists(st.integers(0, 300), max_size=6))
def test_calls_are_read_however_they_are_cut(name: str, data: st.DataObject, cuts: list[int]) -> None:
    calls = [data.draw(weather_calls(name)), ("files.read-all", {}), data.draw(weather_calls(name))]
    text = WRITERS[name](calls)
    whole = read(name, [text])
    assert read_calls(whole) == [(tool, dict(arguments), True) for tool, arguments in calls]
    assert read(name, pieces_of(text, cuts)) == whole
    assert read(name, list(text)) == whole


@pytest.mark.parametrize("name", [name for name in WRITERS if not name.endswith("pythonic")])
@settings(max_examples=20)
@given(data=st.data())
def test_a_forced_call_may_be_what_the_model_writes(name: str, data: st.DataObject) -> None:
    calls = [data.draw(weather_calls(name)), ("files.read-all", {})]
    grammars = AnswerGrammar(FormatTable(None, TOOL_FORMATS[name]), {})
    forced = grammars.of(AnswerShape(CALLABLE, is_forced=True))
    assert accepts(forced, WRITERS[name](calls))
    assert not accepts(forced, "text")
    assert not accepts(forced, WRITERS[name]([("other", {})]))
    one = grammars.of(AnswerShape(CALLABLE, is_forced=True, parallel=False))
    assert accepts(one, WRITERS[name](calls[:1]))
    assert not accepts(one, WRITERS[name](calls))


@pytest.mark.parametrize("name", WRITERS)
def test_a_call_of_a_tool_that_was_not_offered_is_text(name: str) -> None:
    text = WRITERS[name]([("rm", {"city": "A"})])
    assert read(name, list(text)) == [text]


@pytest.mark.parametrize("name", WRITERS)
@given(data=st.data(), length=st.integers(0, 300))
def test_an_answer_that_is_cut_invents_nothing(name: str, data: st.DataObject, length: int) -> None:
    call = data.draw(weather_calls(name))
    text = WRITERS[name]([call])
    events = read(name, list(text[:length]))
    calls = [event for event in events if isinstance(event, ToolCallStarted)]
    ended = [event for event in events if isinstance(event, ToolCallEnded)]
    assert [event.name for event in calls] in ([], ["get_weather"])
    assert len(ended) == len(calls)
    if ended and ended[0].is_complete:
        arguments = "".join(event.text for event in events if isinstance(event, ToolArguments))
        assert json.loads(arguments) == call[1]
    if not calls:
        assert "".join(str(event) for event in events) == text[:length]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>", "qwen3_coder"),
        ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>", "glm45"),
        ("<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>", "glm47"),
        ("{%- set toolcall_begin_token = '<minimax:tool_call>' -%}", "minimax_m2"),
        (
            "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + name + '\\n' + '```json'",
            "deepseek_v3",
        ),
        ("{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'", "deepseek_v31"),
        ('{%- set dsml_token = "｜DSML｜" -%}', "deepseek_v32"),
        ("<|tool_calls_section_begin|>{%- for tool_call in message['tool_calls'] -%}", "kimi_k2"),
        ("{{- '<|tool_call>call:' + function['name'] + '{' -}}", "gemma4"),
        ("{{- '<start_function_call>call:' }}", "functiongemma"),
        ("<|start|>assistant<|channel|>analysis<|message|>", "openai"),
        ("{{- '<|python_start|>' }}", "llama4_pythonic"),
    ],
)
def test_a_template_shows_its_format(template: str, name: str) -> None:
    assert tool_format_of(template).name == name


def test_the_model_writes_the_id_of_a_call() -> None:
    options = ParserOptions(FormatTable(None, TOOL_FORMATS["kimi_k2"]), tools=TOOLS)
    text = WRITERS["kimi_k2"]([("get_weather", {"city": "A"}), ("get_weather", {"city": "B"})])
    events = run_stage(FormatParser(options), list(text))
    assert [event.call_id for event in events if isinstance(event, ToolCallStarted)] == [
        "functions.get_weather:0",
        "functions.get_weather:1",
    ]
