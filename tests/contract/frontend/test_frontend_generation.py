"""GenerationService: what clients get for what the engine says."""

from __future__ import annotations

import pytest
from grpc.aio import AioRpcError
from support.builders.frontend import chat_request, frontend_bench, ids, joined, last_delta
from support.builders.tokenizer import IM_END_ID
from support.fakes.engine import says, says_with_logprobs
from triptych.errors import (
    TriptychError,
)
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.rpc.interceptors import REQUEST_ID_KEY

Options = generation_pb2.GenerationOptions


Sampling = common_pb2.SamplingParams


CompleteRequest = generation_pb2.CompleteRequest


TEXT = "Hello there, 😀 how are you? I am fine. The end of the story."


async def collect(call) -> list:
    return [response async for response in call]


async def error_of(call) -> TriptychError:
    with pytest.raises(AioRpcError) as caught:
        await collect(call)
    return from_rpc_error(caught.value)


async def test_chat_streams_text_then_usage_and_timings() -> None:
    async with frontend_bench(says(ids(TEXT), stop_token_id=IM_END_ID, cached_tokens=3)) as bench:
        call = bench.chat(chat_request(), metadata=((REQUEST_ID_KEY, "my-id"),))
        responses = await collect(call)
        (request,) = bench.engine.requests
    assert joined(responses) == TEXT
    assert all("\ufffd" not in choice.text for response in responses for choice in response.choices)
    assert len(responses) > 3
    assert {response.request_id for response in responses} == {"my-id"}
    last = last_delta(responses)
    assert last.finish_reason == common_pb2.FINISH_REASON_STOP
    assert last.WhichOneof("matched_stop") is None, "the model's own end is not reported as a matched stop"
    assert [response.HasField("usage") for response in responses] == [False] * (len(responses) - 1) + [True]
    usage = responses[-1].usage
    num_prompt_tokens = len(request.prompt_token_ids)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (num_prompt_tokens, len(ids(TEXT)) + 1, 3)
    assert (responses[-1].timings.prefill_s, responses[-1].timings.preprocess_s > 0) == (0.25, True)
    assert not request.sampling.HasField("max_tokens"), "the engine bounds it"
    assert request.request_id.startswith("my-id-")


async def test_the_first_delta_of_each_choice_has_the_prompts_length() -> None:
    async with frontend_bench(says(ids(TEXT), stop_token_id=IM_END_ID)) as bench:
        responses = await collect(bench.chat(chat_request(options=Options(n=2))))
    for index in range(2):
        deltas = [choice for response in responses for choice in response.choices if choice.index == index]
        assert [delta.HasField("prompt_tokens") for delta in deltas] == [True] + [False] * (len(deltas) - 1)
        assert deltas[0].prompt_tokens == responses[-1].usage.prompt_tokens


async def test_one_response_per_choice_when_only_the_end_is_wanted() -> None:
    async with frontend_bench(says(ids(TEXT), stop_token_id=IM_END_ID)) as bench:
        options = Options(n=2)
        responses = await collect(bench.chat(chat_request(options=options), generation_pb2.OUTPUT_MODE_FINAL))
    choices = [choice for response in responses for choice in response.choices]
    assert sorted((choice.index, choice.text) for choice in choices) == [(0, TEXT), (1, TEXT)]


async def test_choices_have_seeds_of_their_own_and_the_prompt_counts_once() -> None:
    async with frontend_bench() as bench:
        options = Options(n=3, sampling=Sampling(seed=7))
        responses = await collect(bench.chat(chat_request(options=options)))
        requests = bench.engine.requests
        messages = bench.engine.messages
    assert [(request.n, request.sampling.seed) for request in requests] == [(3, 7)], "the engine numbers the seeds"
    assert len(messages) == 1
    assert [joined(responses, index) for index in range(3)] == ["Hello there"] * 3
    usage = responses[-1].usage
    assert usage.prompt_tokens == len(requests[0].prompt_token_ids)
    assert usage.completion_tokens == 3 * (len(ids("Hello there")) + 1)


@pytest.mark.parametrize("tokens_per_step", [1, 2, 100])
@pytest.mark.parametrize(("include_stop", "expected"), [(False, "Hello there, 😀 how"), (True, "Hello there, 😀 how are you")])
async def test_a_stop_string_ends_the_choice_and_the_engines_work(tokens_per_step: int, include_stop: bool, expected: str) -> None:
    async with frontend_bench(says(ids(TEXT), tokens_per_step=tokens_per_step)) as bench:
        await bench.engine.pause(after_steps=1000)
        options = Options(stop=["never", " are you"], include_stop_in_output=include_stop, return_token_ids=True)
        responses = await collect(bench.chat(chat_request(options=options)))
        aborted = list(bench.engine.aborted)
        live = dict(bench.engine.live)
        (request,) = bench.engine.requests
    assert joined(responses) == expected
    last = last_delta(responses)
    assert (last.finish_reason, last.stop_text) == (common_pb2.FINISH_REASON_STOP, " are you")
    # Tokens up to the one that completed the stop string count, however many the engine sent beyond.
    assert responses[-1].usage.completion_tokens == len(ids("Hello there, 😀 how are you"))
    assert sum(len(choice.token_ids) for response in responses for choice in response.choices) == len(
        ids("Hello there, 😀 how are you")
    )
    assert not live
    if tokens_per_step == 1:
        assert aborted == [request.request_id]


async def test_text_that_might_begin_a_stop_string_is_never_sent() -> None:
    async with frontend_bench(says(ids("abc STO and STOP here"))) as bench:
        responses = await collect(bench.chat(chat_request(options=Options(stop=["STOP"]))))
    assert joined(responses) == "abc STO and "


async def test_a_held_back_beginning_is_sent_when_the_text_ends_with_it() -> None:
    async with frontend_bench(says(ids("abc STO"))) as bench:
        responses = await collect(bench.chat(chat_request(options=Options(stop=["STOP"]))))
    assert joined(responses) == "abc STO"
    assert last_delta(responses).finish_reason == common_pb2.FINISH_REASON_LENGTH


async def test_stop_strings_wait_for_min_tokens() -> None:
    text = "one two one three"
    async with frontend_bench(says(ids(text))) as bench:
        options = Options(stop=["one"], sampling=Sampling(min_tokens=len(ids("one two"))))
        responses = await collect(bench.complete(CompleteRequest(text="x", options=options)))
    assert joined(responses) == "one two "


async def test_a_clients_stop_token_is_reported_and_is_no_text() -> None:
    (comma,) = ids(",")
    async with frontend_bench(says(ids("Hello"), stop_token_id=comma)) as bench:
        options = Options(sampling=Sampling(stop_token_ids=[comma]))
        responses = await collect(bench.chat(chat_request(options=options)))
        options.include_stop_in_output = True
        with_stop = await collect(bench.chat(chat_request(options=options)))
    assert (joined(responses), joined(with_stop)) == ("Hello", "Hello,")
    assert last_delta(responses).stop_token_id == comma
    assert responses[-1].usage.completion_tokens == len(ids("Hello")) + 1


@pytest.mark.parametrize(("skip", "expected"), [(True, "Hello"), (False, "Hello<|im_start|>")])
async def test_special_tokens_are_text_only_on_request(skip: bool, expected: str) -> None:
    async with frontend_bench(says(ids("Hello<|im_start|>"))) as bench:
        responses = await collect(bench.chat(chat_request(options=Options(skip_special_tokens=skip))))
    assert joined(responses) == expected


async def test_complete_continues_with_the_right_space_and_echoes() -> None:
    async with frontend_bench(says(ids(" there"))) as bench:
        plain = await collect(bench.complete(CompleteRequest(text="Hello")))
        echoed = await collect(bench.complete(CompleteRequest(text="Hello", echo=True)))
        by_ids = CompleteRequest(token_ids=generation_pb2.TokenIds(ids=ids("Hello")), echo=True)
        echoed_ids = await collect(bench.complete(by_ids))
    assert (joined(plain), joined(echoed), joined(echoed_ids)) == (" there", "Hello there", "Hello there")


async def test_special_tokens_of_a_raw_prompt_are_tokens() -> None:
    async with frontend_bench() as bench:
        await collect(bench.complete(CompleteRequest(text="<|im_start|>user")))
        (request,) = bench.engine.requests
    assert list(request.prompt_token_ids) == ids("<|im_start|>user")


async def test_no_output_at_all_still_ends_in_a_reply() -> None:
    async with frontend_bench(says([])) as bench:
        options = Options(sampling=Sampling(max_tokens=0))
        (response,) = await collect(bench.complete(CompleteRequest(text="Hello", options=options)))
        assert bench.engine.requests[0].sampling.max_tokens == 0
    assert response.choices[0].finish_reason == common_pb2.FINISH_REASON_LENGTH
    assert response.usage.completion_tokens == 0


async def test_logprobs_carry_bytes_and_offsets_also_of_parts_of_characters() -> None:
    text = "The 😀é fox"
    async with frontend_bench(says_with_logprobs(ids(text), *ids("\n"))) as bench:
        options = Options(sampling=Sampling(logprobs=2), return_token_ids=True)
        responses = await collect(bench.chat(chat_request(options=options)))
    choices = [choice for response in responses for choice in response.choices]
    logprobs = [entry for choice in choices for entry in choice.logprobs]
    assert [entry.token_id for entry in logprobs] == [token_id for choice in choices for token_id in choice.token_ids] == ids(text)
    assert b"".join(entry.utf8 for entry in logprobs).decode() == text
    assert [entry.logprob for entry in logprobs] == [-float(position) for position in range(len(logprobs))]
    assert all(entry.top[1].token == "\n" for entry in logprobs)
    # A token that ends inside a character starts where that character starts.
    for entry, before in zip(logprobs, range(len(logprobs)), strict=True):
        whole = b"".join(earlier.utf8 for earlier in logprobs[:before]).decode(errors="ignore")
        assert entry.text_offset == len(whole)


@pytest.mark.parametrize("prompt", ["The é fox 😀", "T"])
@pytest.mark.parametrize("by_ids", [False, True])
async def test_an_echoed_prompt_has_logprobs_with_offsets_into_the_echoed_text(by_ids: bool, prompt: str) -> None:
    text = " jumps"
    async with frontend_bench(says_with_logprobs(ids(text), *ids("\n"))) as bench:
        request = CompleteRequest(echo=True, options=Options(sampling=Sampling(logprobs=2), return_token_ids=True))
        if by_ids:
            request.token_ids.ids.extend(ids(prompt))
        else:
            request.text = prompt
        responses = await collect(bench.complete(request))
        assert bench.engine.requests[0].sampling.prompt_logprobs == 2
    logprobs = [entry for response in responses for entry in response.choices[0].logprobs]
    assert [entry.token_id for entry in logprobs] == ids(prompt) + ids(text)
    assert not logprobs[0].HasField("logprob")
    assert all(entry.HasField("logprob") for entry in logprobs[1:])
    whole = joined(responses)
    assert whole == prompt + text
    for position, entry in enumerate(logprobs):
        before = b"".join(earlier.utf8 for earlier in logprobs[:position])
        assert entry.text_offset == len(before.decode(errors="ignore")), entry


async def test_a_constraint_and_bad_sequences_reach_the_engine_as_they_are() -> None:
    constraint = common_pb2.Constraint(json_schema='{"type": "object", "properties": {"a": true}}', starts_after_token_ids=[5])
    sampling = Sampling(bad_token_sequences=[common_pb2.TokenSequence(token_ids=[7, 8])])
    async with frontend_bench() as bench:
        await collect(bench.chat(chat_request(options=Options(constraint=constraint, sampling=sampling))))
        (request,) = bench.engine.requests
    assert request.constraint == constraint
    assert request.sampling.bad_token_sequences == sampling.bad_token_sequences
