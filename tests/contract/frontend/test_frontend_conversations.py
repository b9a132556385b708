"""Conversations through the frontend, in the cases in which meaning was lost: each fails without the stage for conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from support.builders.frontend import TOKENIZER, chat_request, frontend_bench, ids
from support.builders.tokenizer import IM_END_ID
from support.builders.tools import tool, tool_model_dir
from support.fakes.engine import says
from triptych.errors import ContextLengthError, InvalidRequestError
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, generation_pb2

Choice = generation_pb2.ToolChoice
Message, Options, Part = generation_pb2.ChatMessage, generation_pb2.GenerationOptions, generation_pb2.ContentPart
REQUIRED = Choice(mode=Choice.MODE_REQUIRED)
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
JSON_ANSWER = Options(constraint=common_pb2.Constraint(json_schema=json.dumps(SCHEMA)))


def written(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


CALL = written("get_weather", '{"city": "A"}')


def bench(text: str = CALL, **settings: Any) -> Any:
    return frontend_bench(says(ids(text), stop_token_id=IM_END_ID), model=tool_model_dir(), **settings)


def message(role: str, text: str, **fields: Any) -> generation_pb2.ChatMessage:
    return Message(role=role, content=[Part(text=text)], **fields)


def prompt_of(one: Any) -> str:
    text: str = TOKENIZER.decode(list(one.engine.requests[-1].prompt_token_ids), skip_special_tokens=False)
    return text


def accepts(grammar: str, text: str) -> bool:
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar))
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


async def only_choice(text: str, **fields: Any) -> generation_pb2.Choice:
    async with bench(text) as one:
        (choice,) = (await one.generation.Chat(chat_request(**fields))).choices
        return choice


async def grammar_of(**fields: Any) -> str:
    async with bench() as one:
        await one.generation.Chat(chat_request(**fields))
        return str(one.engine.requests[-1].constraint.grammar)


async def test_the_developers_message_reaches_a_template_that_knows_no_such_role() -> None:
    template = (
        "{% for m in messages %}{% if m.role in ['system', 'user'] %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}{% endif %}{% endfor %}"
    )
    messages = [message("developer", "Answer in French."), message("user", "Hi")]
    path = tool_model_dir().parent / "known_roles.jinja"
    path.write_text(template, encoding="utf-8")
    async with bench(chat_template=path) as one:
        await one.generation.Chat(chat_request(messages=messages))
        assert prompt_of(one) == "<|im_start|>system\nAnswer in French.<|im_start|>user\nHi"


async def test_tools_and_a_format_of_the_answer_go_together() -> None:
    grammar = await grammar_of(tools=[tool()], options=JSON_ANSWER)
    assert accepts(grammar, CALL)
    assert accepts(grammar, '{"answer": "42"}')
    assert not accepts(grammar, "Just text.")
    assert not accepts(grammar, '{"other": "42"}')
    strict = await grammar_of(tools=[tool(strict=True)], options=JSON_ANSWER)
    assert accepts(strict, CALL)
    assert not accepts(strict, written("get_weather", '{"town": "A"}'))
    for constraint, text in (
        (common_pb2.Constraint(json_object=True), '{"a": [1]}'),
        (common_pb2.Constraint(regex=r"a/b|\d+"), "a/b"),
        (common_pb2.Constraint(choice=common_pb2.StringList(values=["yes", 'n"o'])), 'n"o'),
    ):
        either = await grammar_of(tools=[tool()], options=Options(constraint=constraint))
        assert accepts(either, text)
        assert accepts(either, CALL)
        assert not accepts(either, "neither")


async def test_where_a_call_is_required_a_format_of_the_text_has_no_effect() -> None:
    assert await grammar_of(tools=[tool()], tool_choice=REQUIRED, options=JSON_ANSWER) == await grammar_of(
        tools=[tool()], tool_choice=REQUIRED
    )


async def test_a_choice_that_names_a_tool_asks_for_one_call() -> None:
    named = Choice(mode=Choice.MODE_REQUIRED, allowed_names=["get_weather"])
    grammar = await grammar_of(tools=[tool(), tool("other")], tool_choice=named)
    assert accepts(grammar, CALL)
    assert not accepts(grammar, f"{CALL}\n{CALL}")
    choice = await only_choice(f"{CALL}\n{CALL}", tools=[tool(), tool("other")], tool_choice=named)
    assert len(choice.tool_calls) == 1
    assert choice.finish_reason == common_pb2.FINISH_REASON_TOOL_CALLS


@pytest.mark.parametrize("text", [written("rm", "{}"), "Write " + written("delete_all", '{"path": "/"}') + " for that."])
async def test_a_tool_that_was_not_offered_is_not_called(text: str) -> None:
    choice = await only_choice(text, tools=[tool()])
    assert (choice.text, list(choice.tool_calls)) == (text, [])
    assert choice.finish_reason == common_pb2.FINISH_REASON_STOP


async def test_a_call_that_is_quoted_in_the_reasoning_is_not_made() -> None:
    thought = f"I could write {CALL}, but I know it."
    choice = await only_choice(f"{thought}\n</think>\n\nRain.", tools=[tool()], reasoning=generation_pb2.Reasoning(effort="high"))
    assert (choice.reasoning, choice.text, list(choice.tool_calls)) == (thought, "Rain.", [])


async def test_a_stop_string_inside_of_arguments_leaves_no_call_to_be_made() -> None:
    choice = await only_choice(CALL, tools=[tool()], options=Options(stop=['"A']))
    assert choice.tool_calls[0].incomplete
    assert (choice.finish_reason, choice.stop_text) == (common_pb2.FINISH_REASON_STOP, '"A')


@pytest.mark.parametrize("arguments", ['{"city": tru}', "[1]", '"text', '{"city": "A",}'])
async def test_arguments_that_are_no_json_object_are_marked(arguments: str) -> None:
    choice = await only_choice(written("get_weather", arguments), tools=[tool()])
    assert choice.finish_reason == common_pb2.FINISH_REASON_STOP
    assert all(call.incomplete for call in choice.tool_calls)


async def test_deltas_say_that_a_call_is_incomplete() -> None:
    async with bench(CALL[:-30]) as one:
        deltas = [delta async for response in one.chat(chat_request(tools=[tool()])) for delta in response.choices]
    assert [delta.tool_call.incomplete for delta in deltas if delta.WhichOneof("delta") == "tool_call"].count(True) == 1


async def test_a_result_of_a_call_that_nobody_made_is_refused() -> None:
    messages = [message("user", "Hi"), message("tool", "42", tool_call_id="call_7")]
    async with bench() as one:
        with pytest.raises(Exception, match="call_7") as caught:
            await one.generation.Chat(chat_request(messages=messages, tools=[tool()]))
        error = from_rpc_error(caught.value)
    assert isinstance(error, InvalidRequestError)
    assert error.field == "messages[1].tool_call_id"


def long_conversation(num_turns: int) -> list[generation_pb2.ChatMessage]:
    call = generation_pb2.ToolCall(id="c1", name="get_weather", arguments="{}")
    turns = [message("system", "S")]
    for number in range(num_turns):
        turns += [
            message("user", f"question {number} " + "word " * 20),
            message("assistant", f"answer {number}", tool_calls=[call]),
        ]
        turns += [message("tool", f"result {number}", tool_call_id="c1")]
    return [*turns, message("user", "the last question")]


async def test_the_oldest_exchanges_are_left_out_where_all_are_too_long() -> None:
    options = Options(sampling=common_pb2.SamplingParams(max_tokens=50))
    async with bench(max_model_len=1500) as one:
        with pytest.raises(Exception, match="context") as caught:
            await one.generation.Chat(chat_request(messages=long_conversation(40), options=options))
        assert isinstance(from_rpc_error(caught.value), ContextLengthError)
        request = chat_request(messages=long_conversation(40), options=options, drop_oldest_messages=True)
        await one.generation.Chat(request)
        prompt, num_tokens = prompt_of(one), len(one.engine.requests[-1].prompt_token_ids)
        assert num_tokens <= 1450
        assert prompt.index("S") < prompt.index("question")
        assert "the last question" in prompt
        assert "question 0" not in prompt
        first = next(number for number in range(40) if f"question {number} " in prompt)
        assert all(f"{what} {number}" in prompt for number in range(first, 40) for what in ("question", "answer", "result"))
        assert f"result {first - 1}" not in prompt
        # One exchange more would not fit.
        assert num_tokens + num_tokens // (40 - first) > 1450
        short = chat_request(messages=long_conversation(1), options=options, drop_oldest_messages=True)
        await one.generation.Chat(short)
        assert "question 0" in prompt_of(one)


async def test_max_tokens_beyond_the_context_are_refused_or_clamped() -> None:
    sampling = common_pb2.SamplingParams(max_tokens=100_000)
    async with bench("Yes.", max_model_len=500) as one:
        with pytest.raises(Exception, match="100000"):
            await one.generation.Chat(chat_request(options=Options(sampling=sampling)))
        await one.generation.Chat(chat_request(options=Options(sampling=sampling, clamp_max_tokens=True)))
        request = one.engine.requests[-1]
        assert request.sampling.max_tokens == 500 - len(request.prompt_token_ids)
        long = [message("user", "word " * 2000)]
        with pytest.raises(Exception, match="500"):
            await one.generation.Chat(chat_request(messages=long, options=Options(sampling=sampling, clamp_max_tokens=True)))
