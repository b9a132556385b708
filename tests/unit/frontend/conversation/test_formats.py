"""Reasoning and tool calls of each format: what a transcript becomes, however it is cut."""

from __future__ import annotations

import itertools
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drivers.output import merged, pieces_of, run_stage
from triptych_frontend.conversation.events import Event, Reasoning, Stopped, Text, ToolArguments, ToolCallEnded, ToolCallStarted
from triptych_frontend.conversation.formats.calls import ParserOptions
from triptych_frontend.conversation.formats.known import REASONING_FORMATS, TOOL_FORMATS
from triptych_frontend.conversation.formats.parser import FormatParser
from triptych_frontend.conversation.formats.table import FormatTable
from triptych_frontend.output.delta import DeltaBuilder

ANYTHING = {"type": "object"}
TOOLS = {"f": ANYTHING, "g": ANYTHING, "get_weather": ANYTHING}


def parser(tools: str = "", reasoning: str = "", is_reasoning: bool = False, only_one_call: bool = False) -> FormatParser:
    numbers = itertools.count()
    table = FormatTable(REASONING_FORMATS.get(reasoning), TOOL_FORMATS.get(tools))
    return FormatParser(ParserOptions(table, is_reasoning, TOOLS, only_one_call), lambda: f"id{next(numbers)}")


def call(index: int, name: str, arguments: str, is_complete: bool = True) -> list[Event]:
    pieces = [ToolArguments(index, arguments)] if arguments else []
    return [ToolCallStarted(index, f"id{index}", name), *pieces, ToolCallEnded(index, is_complete)]


def cut(index: int, name: str, arguments: str) -> list[Event]:
    """A call that cannot be made."""
    return call(index, name, arguments, is_complete=False)


F = '{"name": "f", "arguments": {"a":  [1, "}</tool_call>"], "b": "\\"é"}}'
F_ARGUMENTS = '{"a":  [1, "}</tool_call>"], "b": "\\"é"}'
PYTHON_ARGUMENTS = '{"city": "Zürich (\\")", "days": [1, {"a": true}], "x": -1.5, "y": null, "z": "g(2)"}'

# format, text, events
TOOL_TRANSCRIPTS: list[tuple[str, str, list[object]]] = [
    ("hermes", f"Let me look.\n\n<tool_call>\n{F}\n</tool_call>", ["Let me look.", *call(0, "f", F_ARGUMENTS)]),
    (
        "hermes",
        f"<tool_call>{F}</tool_call>\n<tool_call>{F}</tool_call>\n",
        [*call(0, "f", F_ARGUMENTS), *call(1, "f", F_ARGUMENTS)],
    ),
    # Closing markers are missing or doubled, and text follows.
    (
        "hermes",
        f"<tool_call>{F}<tool_call>{F}</tool_call></tool_call> Done.\n",
        [*call(0, "f", F_ARGUMENTS), *call(1, "f", F_ARGUMENTS), "Done.\n"],
    ),
    ("hermes", f"<tool_call>[{F}, {F}]</tool_call>", [*call(0, "f", F_ARGUMENTS), *call(1, "f", F_ARGUMENTS)]),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "g", "id": 7}</tool_call>', call(0, "g", '{"a": 1}')),
    # Nobody offered this tool.
    (
        "hermes",
        'Hm.\n<tool_call>\n{"name": "rm", "arguments": {"a": 1}}\n</tool_call>',
        ['Hm.\n<tool_call>\n{"name": "rm", "arguments": {"a": 1}}\n</tool_call>'],
    ),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', call(0, "f", "{}")),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', call(0, "f", "{}")),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', call(0, "f", '{"a": 1}')),
    # Malformed calls, and text that only looks like one.
    ("hermes", "a <tool_call> tag, b < c", ["a <tool_call> tag, b < c"]),
    ("hermes", ' <tool_call>{"nam": 1}</tool_call>', [' <tool_call>{"nam": 1}</tool_call>']),
    ("hermes", '<tool_call>{"name": "f", oops}', ['<tool_call>{"name": "f", oops}']),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ]}', [*cut(0, "f", '{"a": '), "]}"]),
    ("hermes", "  Plain text, no call.  ", ["  Plain text, no call.  "]),
    # Cut by max_tokens: what is there, as it is.
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b', cut(0, "f", '{"a": "b')),
    ("hermes", '<tool_call>{"name": "f", "arg', cut(0, "f", "")),
    ("hermes", 'x <tool_call>{"na', ['x <tool_call>{"na']),
    ("hermes", f"<tool_call>{F}</tool_", call(0, "f", F_ARGUMENTS)),
    (
        "llama3_json",
        '{"name": "f", "parameters": {"a": 1}}; {"name": "f", "parameters": {}}',
        [*call(0, "f", '{"a": 1}'), *call(1, "f", "{}")],
    ),
    ("llama3_json", 'Sure. <|python_tag|>{"name": "g", "parameters": {"a": 1}}', ["Sure.", *call(0, "g", '{"a": 1}')]),
    ("llama3_json", '{"name": "Bob", "age": 3}', ['{"name": "Bob", "age": 3}']),
    ("llama3_json", 'I say {"name": "f", "parameters": {}}', ['I say {"name": "f", "parameters": {}}']),
    ("mistral", f'[TOOL_CALLS][{F}, {{"name": "g", "arguments": {{}}}}]', [*call(0, "f", F_ARGUMENTS), *call(1, "g", "{}")]),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]', call(0, "f", '{"a": 1}')),
    (
        "mistral",
        'Hm.[TOOL_CALLS]f[ARGS]{"a": "[ARGS]"}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}',
        ["Hm.", *call(0, "f", '{"a": "[ARGS]"}'), *call(1, "g", "{}")],
    ),
    ("mistral", '[TOOL_CALLS]f{"a": 1}', call(0, "f", '{"a": 1}')),
    ("mistral", "[TOOL_CALLS] are great", ["[TOOL_CALLS] are great"]),
    (
        "pythonic",
        '[get_weather(city=\'Zürich (")\', days=[1, {"a": True}], x=-1.5, y=null, z=g(2)), f()]',
        [*call(0, "get_weather", PYTHON_ARGUMENTS), *call(1, "f", "{}")],
    ),
    ("pythonic", "[1, 2]", ["[1, 2]"]),
    ("pythonic", "[f(max-days=3)]", call(0, "f", '{"max-days": 3}')),
    ("pythonic", "[unknown(a=1)]", ["[unknown(a=1)]"]),
    ("pythonic", '[f(a=1, b="x', cut(0, "f", '{"a": 1, "b": "x')),
    ("pythonic", "[f(a=1), b]", [*call(0, "f", '{"a": 1}'), ", b]"]),
    ("json", f"[{F}, {F}]", [*call(0, "f", F_ARGUMENTS), *call(1, "f", F_ARGUMENTS)]),
    ("json", f"{F}\n{F}", [*call(0, "f", F_ARGUMENTS), *call(1, "f", F_ARGUMENTS)]),
    ("json", '[{"a": 1}]', ['[{"a": 1}]']),
    ("granite", f"<|tool_call|>[{F}]", call(0, "f", F_ARGUMENTS)),
    ("phi4_mini_json", f"functools[{F}]", call(0, "f", F_ARGUMENTS)),
]

# reasoning format, tool format, reasoning is open, text, events, reasoning tokens when each character is one
REASONING_TRANSCRIPTS: list[tuple[str, str, bool, str, list[object]]] = [
    ("qwen3", "", False, "<think>\nHm, 1 < 2.\n</think>\n\nYes.\n", [Reasoning("Hm, 1 < 2."), "Yes.\n"]),
    ("qwen3", "", False, "Yes, <think> is a tag.", ["Yes, <think> is a tag."]),
    ("qwen3", "", True, "Hm.</think>Yes.", [Reasoning("Hm."), "Yes."]),
    # A call that is only thought of is none.
    ("qwen3", "hermes", True, f"\nHm.\n<tool_call>{F}</tool_call>", [Reasoning(f"Hm.\n<tool_call>{F}</tool_call>")]),
    (
        "qwen3",
        "hermes",
        True,
        f"I could write <tool_call>{F}</tool_call>, but no.</think>Yes.",
        [Reasoning(f"I could write <tool_call>{F}</tool_call>, but no."), "Yes."],
    ),
    (
        "qwen3",
        "hermes",
        True,
        f"I may <tool_call> it.\n</think>\n\nNow:\n<tool_call>{F}</tool_call>",
        [Reasoning("I may <tool_call> it."), "Now:", *call(0, "f", F_ARGUMENTS)],
    ),
    ("qwen3", "json", True, '</think>\n\n{"name": "f"}', call(0, "f", "{}")),
    # Cut before the end.
    ("deepseek_r1", "", True, "Hm, done</thi", [Reasoning("Hm, done</thi")]),
    ("mistral", "mistral", False, "[THINK]Hm.[/THINK][TOOL_CALLS]f[ARGS]{}", [Reasoning("Hm."), *call(0, "f", "{}")]),
    ("granite", "", False, "Here's my thought process: a Here is b. Here is my response: c", [Reasoning("a Here is b."), "c"]),
    ("kimi_vl", "", False, "◁think▷a◁/think▷b", [Reasoning("a"), "b"]),
]


def all_cuts(text: str) -> list[list[str]]:
    """The whole, single characters, and each cut into two."""
    return [[text], list(text), *([text[:cut], text[cut:]] for cut in range(1, len(text)))]


@pytest.mark.parametrize(("tools", "text", "events"), TOOL_TRANSCRIPTS)
def test_a_transcript_becomes_calls_and_text(tools: str, text: str, events: list[object]) -> None:
    for pieces in all_cuts(text):
        assert merged(run_stage(parser(tools), pieces)) == events


@pytest.mark.parametrize(("reasoning", "tools", "is_open", "text", "events"), REASONING_TRANSCRIPTS)
def test_reasoning_is_told_apart(reasoning: str, tools: str, is_open: bool, text: str, events: list[object]) -> None:
    for pieces in all_cuts(text):
        assert merged(run_stage(parser(tools, reasoning, is_open), pieces)) == events


MARKERS = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    F,
    '{"name": "f"',
    "[f(",
    "a=1",
    ")]",
]
TEXTS = st.lists(st.one_of(st.sampled_from(MARKERS), st.text('<>{}[]"\\:,;/ fa1\n', max_size=6)), max_size=8).map("".join)


@given(
    text=TEXTS,
    cuts=st.lists(st.integers(0, 80)),
    tools=st.sampled_from(["", *TOOL_FORMATS]),
    reasoning=st.sampled_from(["", "qwen3", "mistral"]),
    is_open=st.booleans(),
)
def test_the_events_do_not_depend_on_how_the_text_is_cut(
    text: str, cuts: list[int], tools: str, reasoning: str, is_open: bool
) -> None:
    is_open = is_open and reasoning != ""
    whole = merged(run_stage(parser(tools, reasoning, is_open), [text]))
    assert merged(run_stage(parser(tools, reasoning, is_open), pieces_of(text, cuts))) == whole
    assert merged(run_stage(parser(tools, reasoning, is_open), list(text))) == whole


@given(
    arguments=st.dictionaries(st.text(max_size=4), st.integers() | st.text() | st.lists(st.text())),
)
def test_arguments_are_the_models_own_text(arguments: dict) -> None:
    written = json.dumps(arguments, ensure_ascii=False, indent=1)
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    assert merged(run_stage(parser("hermes"), list(text))) == call(0, "f", written)


def test_arguments_stream_as_they_come() -> None:
    stage = parser("hermes")
    for char in '<tool_call>{"name": "f", "arguments": ':
        assert stage.feed(Text(char, 1)) == []
    assert stage.feed(Text("{", 1)) == [ToolCallStarted(0, "id0", "f"), ToolArguments(0, "{")]
    assert stage.feed(Text('"a', 1)) == [ToolArguments(0, '"a')]


def test_a_single_call_ends_the_choice() -> None:
    text = f"Now.<tool_call>{F}</tool_call><tool_call>{F}</tool_call>"
    for pieces in all_cuts(text):
        events = merged(run_stage(parser("hermes", only_one_call=True), pieces))
        assert events == ["Now.", *call(0, "f", F_ARGUMENTS), Stopped(None)]


def test_reasoning_tokens_are_those_between_the_markers() -> None:
    stage = parser("hermes", "qwen3")
    run_stage(stage, ["<think>", "one", " two", "</think>", "Yes"])
    assert stage.num_reasoning_tokens == 2
    stage = parser("hermes", "qwen3", is_reasoning=True)
    run_stage(stage, ["one", " two", " three"])
    assert stage.num_reasoning_tokens == 3


def test_a_stop_string_ends_the_parser_too() -> None:
    stage = parser("hermes", "qwen3")
    assert stage.feed(Text("<think>a <", 1)) == [Reasoning("a")]
    assert stage.feed(Stopped("END")) == [Reasoning(" <"), Stopped("END")]
    assert stage.finish() == []


@pytest.mark.parametrize(
    ("tools", "text", "events"),
    [
        # Half a character cannot be sent.
        ("hermes", r'<tool_call>{"name": "\ud800"}', [r'<tool_call>{"name": "\ud800"}']),
        ("hermes", r'<tool_call>{"name": "f", "arguments": "\ud800"}', cut(0, "f", r'"\ud800"')),
        ("pythonic", r"[f(a='\ud800')]", call(0, "f", r'{"a": "\ud800"}')),
        # Deeper than the JSON parser goes.
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {"[" * 5000}{"]" * 5000}}}', cut(0, "f", "[" * 5000 + "]" * 5000)),
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {"9" * 5000}}}', cut(0, "f", "9" * 5000)),
        # JSON in a Python call: its escapes are JSON's.
        ("pythonic", r'[f(a="\ud83d\ude00", b="x\/y", c=NaN)]', call(0, "f", r'{"a": "\ud83d\ude00", "b": "x\/y", "c": "NaN"}')),
    ],
)
def test_odd_characters_end_no_call(tools: str, text: str, events: list[object]) -> None:
    found = merged(run_stage(parser(tools), [text]))
    assert [event.text if isinstance(event, Text) else event for event in found] == events


@pytest.mark.parametrize(
    "text",
    [
        " " * 40_000 + "x",
        "a" + " " * 40_000 + "x",
        "<think>" + "abc " * 10_000,
        '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * 40_000,
    ],
)
def test_long_outputs_cost_linear_time(text: str) -> None:
    # Quadratic, each of these took seconds.
    stage, deltas = parser("hermes", "qwen3"), DeltaBuilder(0)
    start_s = time.process_time()
    for piece in pieces_of(text, range(4, len(text), 4)):
        deltas.add(stage.feed(Text(piece, 1)))
    deltas.add(stage.finish())
    taken = deltas.take()
    assert time.process_time() - start_s < 1
    joined = "".join(delta.text + delta.reasoning + delta.tool_call.arguments for delta in taken)
    assert text.strip().endswith(joined.strip())
