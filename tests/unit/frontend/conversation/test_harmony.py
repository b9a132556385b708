"""The format of gpt-oss: messages with channels and recipients. The texts are those of OpenAI's description of the format."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from support.drivers.output import merged, pieces_of, run_stage
from triptych.v1 import common_pb2
from triptych_frontend.conversation.events import Event, Reasoning, Stopped, ToolArguments, ToolCallEnded, ToolCallStarted
from triptych_frontend.conversation.formats.calls import ParserOptions
from triptych_frontend.conversation.formats.grammar import AnswerGrammar, AnswerShape
from triptych_frontend.conversation.formats.harmony import MARKERS, HarmonyParser
from triptych_frontend.conversation.formats.known import REASONING_FORMATS, TOOL_FORMATS
from triptych_frontend.conversation.formats.table import FormatTable
from triptych_frontend.conversation.syntaxes.syntax import CallableTool

SCHEMA = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
TABLE = FormatTable(REASONING_FORMATS["openai_gptoss"], TOOL_FORMATS["openai"])
ANALYSIS = "<|channel|>analysis<|message|>Need to use function get_weather.<|end|><|start|>assistant"
THOUGHT = Reasoning("Need to use function get_weather.")
ARGUMENTS = '{"location":"Tokyo"}'


def parser(only_one_call: bool = False) -> HarmonyParser:
    numbers = itertools.count()
    return HarmonyParser(
        ParserOptions(TABLE, tools={"get_weather": SCHEMA}, only_one_call=only_one_call), lambda: f"id{next(numbers)}"
    )


def call(arguments: str, is_complete: bool = True) -> list[Event]:
    return [ToolCallStarted(0, "id0", "get_weather"), ToolArguments(0, arguments), ToolCallEnded(0, is_complete)]


TRANSCRIPTS: list[tuple[str, list[object]]] = [
    (
        '<|channel|>analysis<|message|>User asks: "What is 2 + 2?"<|end|>'
        "<|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|return|>",
        [Reasoning('User asks: "What is 2 + 2?"'), "2 + 2 = 4."],
    ),
    # The recipient stands in the channel, or in the role; the stop token is no part of the text.
    (
        f"{ANALYSIS}<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGUMENTS}",
        [THOUGHT, *call(ARGUMENTS)],
    ),
    (
        f"{ANALYSIS} to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{ARGUMENTS}<|call|>",
        [THOUGHT, *call(ARGUMENTS)],
    ),
    (f" to=functions.get_weather<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>", call(ARGUMENTS)),
    # A preamble is for the user.
    (
        "<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        f"<|constrain|>json<|message|>{ARGUMENTS}<|call|>",
        ["I look it up.", *call(ARGUMENTS)],
    ),
    # Nobody offered this tool.
    (
        "<|channel|>commentary to=functions.rm <|constrain|>json<|message|>{}<|call|>",
        ["<|channel|>commentary to=functions.rm <|constrain|>json<|message|>{}"],
    ),
    # A call that is only thought of.
    (
        "<|channel|>analysis<|message|>I could call to=functions.get_weather {}.<|end|>",
        [Reasoning("I could call to=functions.get_weather {}.")],
    ),
    # Cut, or not JSON.
    (
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"location":"To',
        call('{"location":"To', is_complete=False),
    ),
    ("<|channel|>commentary to=functions.get_weather<|message|>Tokyo<|call|>", call("Tokyo", is_complete=False)),
    ("<|channel|>analysis<|message|>Hm", [Reasoning("Hm")]),
    ("<|channel|>fin", []),
    # The model left the format.
    ("Plain text.", ["Plain text."]),
    ("<|channel|>final<|message|>one<|channel|>analysis<|message|>two", ["one<|channel|>analysis<|message|>two"]),
    ("<|channel|>final<|message|>a < b <| c<|", ["a < b <| c<|"]),
]


@pytest.mark.parametrize(("text", "events"), TRANSCRIPTS)
def test_a_transcript_becomes_reasoning_calls_and_text(text: str, events: list[object]) -> None:
    assert merged(run_stage(parser(), [text])) == events
    assert merged(run_stage(parser(), list(text))) == events
    for size in range(2, 9):
        assert merged(run_stage(parser(), pieces_of(text, range(size, len(text), size)))) == events


@given(
    text=st.lists(
        st.sampled_from(
            [*MARKERS, "final", "analysis", "commentary", " to=functions.get_weather", " to=functions.rm", "{}", "assistant"]
        )
        | st.text("<|a >", max_size=4),
        max_size=8,
    ).map("".join),
    cuts=st.lists(st.integers(0, 100)),
)
def test_the_events_do_not_depend_on_how_the_text_is_cut(text: str, cuts: list[int]) -> None:
    whole = merged(run_stage(parser(), [text]))
    assert merged(run_stage(parser(), pieces_of(text, cuts))) == whole
    assert merged(run_stage(parser(), list(text))) == whole
    started = [event for event in whole if isinstance(event, ToolCallStarted)]
    assert all(event.name == "get_weather" for event in started)
    assert len(started) == sum(isinstance(event, ToolCallEnded) for event in whole)


def test_a_single_call_ends_the_choice() -> None:
    text = f" to=functions.get_weather<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>"
    events = merged(run_stage(parser(only_one_call=True), list(text * 2)))
    assert events == [*call(ARGUMENTS), Stopped(None)]


def test_reasoning_tokens_are_counted() -> None:
    stage = parser()
    run_stage(stage, ["<|channel|>", "analysis", "<|message|>", "one", " two", "<|end|>", "<|start|>", "assistant"])
    assert stage.num_reasoning_tokens == 2
    stage = parser()
    for number, piece in enumerate(["<|channel|>", "analysis", "<|message|>", "one", " two"], 1):
        stage.feed(_text(piece, number))
    assert stage.has_reasoned(2, 5)
    assert not stage.has_reasoned(3, 5)


def _text(text: str, number: int) -> Any:
    from triptych_frontend.conversation.events import Text

    return Text(text, number)


def accepts(grammar: str, text: str) -> bool:
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar))
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def test_grammars_have_the_channels() -> None:
    tools = [CallableTool("get_weather", SCHEMA, "tools")]
    grammars = AnswerGrammar(TABLE, {})
    written = f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGUMENTS}"
    forced = grammars.of(AnswerShape(tools, is_forced=True, may_reason=True))
    assert accepts(forced, written)
    assert accepts(forced, ANALYSIS + written)
    assert not accepts(forced, "<|channel|>final<|message|>No.")
    answer = common_pb2.Constraint(json_object=True)
    either = grammars.of(AnswerShape(tools, text=answer, may_reason=True))
    assert accepts(either, ANALYSIS + written)
    assert accepts(either, '<|channel|>final<|message|>{"a": 1}')
    assert not accepts(either, "<|channel|>final<|message|>No.")
    only = AnswerGrammar(FormatTable(TABLE.reasoning, None), {}).of(AnswerShape(text=answer, may_reason=True))
    assert accepts(only, ANALYSIS + '<|channel|>final<|message|>{"a": 1}')
    assert not accepts(only, written)
