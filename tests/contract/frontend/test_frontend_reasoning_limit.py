"""Reasoning that takes too long is ended: the engine gets a further request, and the client one answer."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from grpc.aio import AioRpcError
from support.builders.frontend import TOKENIZER, chat_request, frontend_bench, ids, joined, last_delta
from support.builders.tokenizer import IM_END_ID, byte_level_tokenizer, write_model
from support.builders.tools import TOOL_TEMPLATE, tool, tool_model_dir
from support.drivers.media_frontend import PICTURE, media_bench, request
from support.fakes.engine import Script, says, thinks
from support.run_dir import run_dir
from support.waiting import until
from triptych.errors import InvalidRequestError, ServiceUnavailableError, TriptychError
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, engine_pb2, generation_pb2

Message, Options, Sampling = generation_pb2.ChatMessage, generation_pb2.GenerationOptions, common_pb2.SamplingParams
THOUGHT = ids("Let me think about it, again and again, and once more.")
#: Of six tokens.
THOUGHT_TEXT = TOKENIZER.decode(THOUGHT[:6])
#: The marker in the tokens of the usual model, where it is text.
END = ids("</think>")


def answers(text: str = "\n\nYes.", thought: list[int] = THOUGHT, end: list[int] = END, **options: Any) -> Script:
    """A script: thinks without an end, and answers behind the end of the reasoning."""
    return thinks(says(thought, **options), says(ids(text), stop_token_id=IM_END_ID), end)


def thinking(max_tokens: int, **fields: Any) -> generation_pb2.ChatRequest:
    return chat_request(reasoning=generation_pb2.Reasoning(max_tokens=max_tokens), **fields)


def bench(script: Script | None = None, **settings: Any) -> Any:
    return frontend_bench(script or answers(), **{"model": tool_model_dir()} | settings)


@lru_cache(1)
def marker_model_dir() -> Path:
    """A model whose markers are tokens."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens(["<think>", "</think>"])
    return write_model(run_dir("think") / "model", tokenizer, chat_template=TOOL_TEMPLATE, max_position_embeddings=4096)


async def error_of(call: Any) -> TriptychError:
    with pytest.raises(AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


@pytest.mark.parametrize("tokens_per_step", [1, 4])
async def test_the_reasoning_ends_and_the_answer_begins(tokens_per_step: int) -> None:
    options = Options(return_token_ids=True, sampling=Sampling(max_tokens=90, min_tokens=8, logprobs=0, seed=7))
    async with bench(answers(tokens_per_step=tokens_per_step)) as one:
        responses = [response async for response in one.chat(thinking(6, options=options))]
        first, second = one.engine.requests
        whole = await one.generation.Chat(thinking(6, options=options))
        assert one.frontend.num_live_requests == 0
    deltas = [delta for response in responses for delta in response.choices]
    kinds = ["reasoning" if delta.reasoning else "text" for delta in deltas if delta.reasoning or delta.text]
    assert kinds == sorted(kinds)  # reasoning before text
    assert joined(responses) == whole.choices[0].text == "Yes."
    token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
    assert token_ids == [*THOUGHT[:6], *END, *ids("\n\nYes."), IM_END_ID]
    assert whole.choices[0].reasoning == "".join(delta.reasoning for delta in deltas) == THOUGHT_TEXT
    assert list(second.prompt_token_ids) == [*first.prompt_token_ids, *token_ids[: 6 + len(END)]]
    num_done = 6 + len(END)
    assert (second.n, second.num_output_tokens, second.constraint_start) == (1, num_done, 0)
    assert second.sampling == first.sampling
    assert second.request_id.startswith(first.request_id)
    logprobs = [entry for delta in deltas for entry in delta.logprobs]
    assert [entry.token_id for entry in logprobs] == token_ids
    assert [entry.logprob for entry in logprobs] == [-1] * 6 + [0] * len(END) + [-1] * (len(token_ids) - num_done)
    assert all(entry.HasField("logprob") for entry in logprobs)
    usage = responses[-1].usage
    assert (usage.completion_tokens, usage.reasoning_tokens) == (len(token_ids), 6)
    assert (usage.prompt_tokens, usage.cached_tokens) == (len(first.prompt_token_ids), 0)
    assert responses[-1].timings.decode_s == 0.5 + 0.125 + 0.25 + 0.5
    assert last_delta(responses).finish_reason == common_pb2.FINISH_REASON_STOP


async def test_reasoning_that_ends_by_itself_is_left_alone() -> None:
    async with bench(says(ids("Hm.</think>Yes."), stop_token_id=IM_END_ID)) as one:
        answer = await one.generation.Chat(thinking(100))
        assert len(one.engine.requests) == 1
        effort = generation_pb2.Reasoning(effort="none", max_tokens=5)
        none = await one.generation.Chat(chat_request(reasoning=effort))
    assert (answer.choices[0].reasoning, answer.choices[0].text) == ("Hm.", "Yes.")
    assert none.choices[0].reasoning == ""


@pytest.mark.parametrize(("max_tokens", "num_further"), [(6, 0), (7, 0), (6 + len(END), 0), (7 + len(END), 1)])
async def test_max_tokens_cut_the_reasoning_or_its_marker(max_tokens: int, num_further: int) -> None:
    options = Options(sampling=Sampling(max_tokens=max_tokens), return_token_ids=True)
    async with bench() as one:
        answer = await one.generation.Chat(thinking(6, options=options))
        assert len(one.engine.requests) == 1 + num_further
    (choice,) = answer.choices
    tokens = [*THOUGHT[:6], *END, *ids("\n\nYes.")]
    assert list(choice.token_ids)[:max_tokens] == tokens[:max_tokens]
    assert num_further or choice.finish_reason == common_pb2.FINISH_REASON_LENGTH
    assert answer.usage.completion_tokens == len(choice.token_ids)


async def test_no_tokens_of_reasoning() -> None:
    opened = Message(role="assistant", content=[generation_pb2.ContentPart(text="<think>Well")])
    messages = [*chat_request().messages, opened]
    going_on = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    async with bench() as one:
        # The template has a switch.
        await one.generation.Chat(thinking(0))
        assert list(one.engine.requests[-1].prompt_token_ids)[-len(ids("</think>\n\n")) :] == ids("</think>\n\n")
        # The prompt leaves the reasoning open.
        options = Options(sampling=Sampling(prompt_logprobs=0), constraint=common_pb2.Constraint(regex="x"))
        answer = await one.generation.Chat(thinking(0, **going_on))
        assert (answer.choices[0].text, answer.choices[0].reasoning, answer.usage.reasoning_tokens) == ("Yes.", "", 0)
        await one.generation.Chat(thinking(0, **going_on, options=options))
        request = one.engine.requests[-1]
    assert list(request.prompt_token_ids)[-len(END) :] == END
    assert not request.constraint.starts_after_token_ids


async def test_the_model_opens_its_reasoning_and_may_not() -> None:
    def script(request: engine_pb2.EngineRequest) -> Any:
        return answers(thought=[*ids("<think>"), *THOUGHT])(request)

    async with bench(script) as one:
        answer = await one.generation.Chat(thinking(0, options=Options(return_token_ids=True)))
    assert list(answer.choices[0].token_ids) == [*ids("<think>"), *END, *ids("\n\nYes."), IM_END_ID]
    assert (answer.choices[0].text, answer.choices[0].reasoning) == ("Yes.", "")


async def test_each_choice_by_itself() -> None:
    def script(request: engine_pb2.EngineRequest) -> Any:
        return answers(thought=THOUGHT)(request)

    async with bench(script) as one:
        options = Options(n=3, sampling=Sampling(seed=1))
        responses = [response async for response in one.chat(thinking(4, options=options))]
        first, *further = one.engine.requests
        assert one.engine.aborted_sequences or one.engine.aborted
        best = await one.generation.Chat(thinking(4, options=Options(best_of=3)))
    assert (first.n, [request.n for request in further[:3]]) == (3, [1, 1, 1])
    assert {request.sampling.seed for request in further[:3]} == {1, 2, 3}
    assert [joined(responses, index) for index in range(3)] == ["Yes."] * 3
    assert responses[-1].usage.reasoning_tokens == 12
    assert best.choices[0].text == "Yes."


async def test_a_stop_string_in_the_marker_ends_the_choice() -> None:
    async with bench() as one:
        answer = await one.generation.Chat(thinking(6, options=Options(stop=["</think>"])))
        assert len(one.engine.requests) == 1
    assert (answer.choices[0].finish_reason, answer.choices[0].stop_text) == (common_pb2.FINISH_REASON_STOP, "</think>")


async def test_a_constraint_holds_from_the_start_of_the_answer() -> None:
    model = marker_model_dir()
    end = [byte_level_tokenizer().get_vocab_size() + 1]
    required = generation_pb2.ToolChoice(mode=generation_pb2.ToolChoice.MODE_REQUIRED)
    constraint = common_pb2.Constraint(regex="Yes")
    async with bench(answers(end=end), model=model) as one:
        answer = await one.generation.Chat(thinking(6, options=Options(constraint=constraint)))
        first, second = one.engine.requests
        await one.generation.Chat(thinking(6, tools=[tool()], tool_choice=required))
        forced, call = one.engine.requests[2:]
        foreign = common_pb2.Constraint(regex="Yes", starts_after_token_ids=[*end, 77])
        error = await error_of(one.generation.Chat(thinking(6, options=Options(constraint=foreign))))
        # Nothing but the constraint's text may be generated, so the model cannot reason.
        effort = generation_pb2.Reasoning(effort="none", max_tokens=6)
        await one.generation.Chat(chat_request(reasoning=effort, options=Options(constraint=constraint)))
    assert answer.choices[0].text == "Yes."
    assert list(first.constraint.starts_after_token_ids) == list(forced.constraint.starts_after_token_ids) == end
    assert (second.constraint.regex, second.constraint_start) == ("Yes", second.num_output_tokens)
    assert call.constraint.grammar
    assert call.constraint_start == call.num_output_tokens == 6 + len(end)
    assert (type(error), error.field) == (InvalidRequestError, "options.constraint.starts_after_token_ids")


def endless(request: engine_pb2.EngineRequest) -> list[engine_pb2.SequenceOutput]:
    """A script: like `answers`, but the answer does not end."""
    return list(answers()(request))[:-1]


async def test_a_caller_that_leaves_ends_the_answer_too() -> None:
    async with bench(endless) as one:
        call = one.chat(thinking(6))
        await call.read()
        await one.engine.until(lambda: len(one.engine.requests) == 2)
        call.cancel()
        await one.engine.until(lambda: one.engine.requests[1].request_id in one.engine.aborted)
        await until(lambda: not one.engine.live and not one.frontend.num_live_requests)


async def rest_of(call: Any) -> None:
    while await call.read():
        pass


@pytest.mark.usefixtures("short_grace")
async def test_an_engine_that_is_lost_during_the_answer_ends_the_call() -> None:
    async with bench(endless) as one:
        call = one.chat(thinking(6))
        while not joined([response := await call.read()]):
            assert response.choices
        await one.engine.go_down()
        error = await error_of(rest_of(call))
        await until(lambda: not one.frontend.num_live_requests)
    assert type(error) is ServiceUnavailableError


async def test_a_call_with_media_goes_on_and_reports_them_once() -> None:
    async with media_bench(reasoning_parser="deepseek_r1") as one:
        end = list(one.bench.frontend._tokenizer.encode_inner("</think>"))
        one.engine.script = answers("Y", thought=[20, 21, 22, 23], end=end)
        asked = request(PICTURE, "What is this?", n=2)
        asked.reasoning.max_tokens = 2
        responses = [response async for response in one.bench.chat(asked)]
        first, *further = one.engine.requests
        await one.until_nothing_is_left()
    assert [len(one.prompt_token_ids) - len(first.prompt_token_ids) for one in further] == [2 + len(end)] * 2
    assert all(list(one.placeholders) == list(first.placeholders) and one.media for one in further)
    assert {delta.index for response in responses for delta in response.choices if delta.text} == {0, 1}
    assert responses[-1].media[0].source == common_pb2.EMBEDDING_SOURCE_ENCODER
    assert responses[-1].usage.reasoning_tokens == 4


async def test_what_cannot_be_limited_is_refused() -> None:
    beams = Options(beam_search=generation_pb2.BeamSearch(width=2))
    async with bench() as one:
        error = await error_of(one.generation.Chat(thinking(5, options=beams)))
        assert (type(error), error.field) == (InvalidRequestError, "reasoning.max_tokens")
    async with frontend_bench() as one:
        error = await error_of(one.generation.Chat(thinking(5)))
        assert (type(error), error.field, error.limit) == (InvalidRequestError, "reasoning.max_tokens", "0")
        await one.generation.Chat(thinking(0))
