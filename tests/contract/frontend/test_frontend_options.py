"""Options that the frontend itself honours: banned words, cut prompts, best_of, beam search, log probabilities of a prompt."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from grpc.aio import AioRpcError
from support.builders.frontend import TOKENIZER, chat_request, frontend_bench, ids, joined
from support.builders.tokenizer import IM_END_ID, MAX_MODEL_LEN, write_model
from support.fakes.engine import says
from triptych.errors import InvalidRequestError, StartupError, TriptychError
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, engine_pb2, generation_pb2

Options, Sampling = generation_pb2.GenerationOptions, common_pb2.SamplingParams
Complete, BeamSearch = generation_pb2.CompleteRequest, generation_pb2.BeamSearch
FINAL = generation_pb2.OUTPUT_MODE_FINAL


async def error_of(call: Any) -> TriptychError:
    with pytest.raises(AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def test_banned_words_are_banned_tokens_and_sequences() -> None:
    async with frontend_bench() as bench:
        await bench.generation.Chat(chat_request(options=Options(bad_words=["Hello", " the"])))
        sampling = bench.engine.requests[-1].sampling
    sequences = [list(one.token_ids) for one in sampling.bad_token_sequences] + [[one] for one in sampling.bad_token_ids]
    spelled = {TOKENIZER.decode(one) for one in sequences}
    assert spelled == {"Hello", " Hello", "the", " the"}
    assert ids(" the") in sequences


@pytest.mark.parametrize(("limit", "kept"), [(3, 3), (MAX_MODEL_LEN, 7), (-1, 7), (1000, 0)])
async def test_the_last_tokens_of_a_long_prompt_are_kept(limit: int, kept: int) -> None:
    token_ids = ids("one two three four five six seven")
    assert len(token_ids) == 7
    request = Complete(token_ids=generation_pb2.TokenIds(ids=token_ids), options=Options(truncate_prompt_tokens=limit), echo=True)
    async with frontend_bench() as bench:
        if not kept:
            assert (await error_of(bench.generation.Complete(request))).field == "options.truncate_prompt_tokens"
            return
        answer = await bench.generation.Complete(request)
        assert list(bench.engine.requests[-1].prompt_token_ids) == token_ids[-kept:]
    assert answer.choices[0].text == TOKENIZER.decode(token_ids[-kept:]) + "Hello there"


async def test_as_much_is_kept_as_fits_with_the_answer() -> None:
    options = Options(truncate_prompt_tokens=-1, sampling=Sampling(max_tokens=56))
    async with frontend_bench() as bench:
        await bench.generation.Complete(Complete(text="x " * 500, options=options))
        assert len(bench.engine.requests[-1].prompt_token_ids) == MAX_MODEL_LEN - 56


def prompt_scores(request: engine_pb2.EngineRequest) -> list[engine_pb2.SequenceOutput]:
    """A script: log probabilities of the prompt, -1, -2 ..., then one token."""
    entries = [
        engine_pb2.TokenLogprobs(token_id=token_id, logprob=-1.0 - index, rank=index + 1)
        for index, token_id in enumerate(request.prompt_token_ids[1:])
    ]
    return [
        engine_pb2.SequenceOutput(
            token_ids=ids("x"), prompt_logprobs=entries, finish_reason=common_pb2.FINISH_REASON_LENGTH, usage=common_pb2.Usage()
        )
    ]


async def test_log_probabilities_of_the_prompt_come_with_the_first_choice() -> None:
    options = Options(sampling=Sampling(prompt_logprobs=0), n=2)
    async with frontend_bench(prompt_scores) as bench:
        chat = await bench.generation.Chat(chat_request(options=options))
        prompt = list(bench.engine.requests[-1].prompt_token_ids)
        stream = [one async for one in bench.chat(chat_request(options=options))]
        whole = await bench.generation.Complete(Complete(text="one two", options=options))
    for entries in (chat.choices[0].prompt_logprobs, [e for r in stream for c in r.choices for e in c.prompt_logprobs]):
        assert [entry.token_id for entry in entries] == prompt
        assert [entry.HasField("logprob") for entry in entries] == [False, *[True] * (len(prompt) - 1)]
        assert [(entry.logprob, entry.rank) for entry in entries[1:3]] == [(-1.0, 1), (-2.0, 2)]
    assert not chat.choices[1].prompt_logprobs
    assert not chat.choices[0].logprobs
    assert next(entry.text_offset for entry in whole.choices[0].prompt_logprobs) == 0
    assert joined(stream) == "x"


async def test_the_likeliest_choices_are_sent() -> None:
    numbers = itertools.count()

    def script(request: engine_pb2.EngineRequest) -> list[engine_pb2.SequenceOutput]:
        number = next(numbers)
        entry = engine_pb2.TokenLogprobs(logprob=[-3.0, -1.0, -2.0][number % 3], rank=1)
        tokens = ids("abc"[number % 3]) * 2
        last = {"finish_reason": common_pb2.FINISH_REASON_LENGTH, "usage": common_pb2.Usage()}
        return [engine_pb2.SequenceOutput(token_ids=tokens, logprobs=[entry, entry], **last)]

    async with frontend_bench(script) as bench:
        answer = await bench.generation.Chat(chat_request(options=Options(n=2, best_of=3)))
        assert bench.engine.requests[-1].n == 3
        assert [(choice.index, choice.text, len(choice.logprobs)) for choice in answer.choices] == [(0, "bb", 0), (1, "cc", 0)]
        assert answer.usage.completion_tokens == 6
        streamed = [one async for one in bench.chat(chat_request(options=Options(best_of=3)), FINAL)]
        assert joined(streamed) == "bb"


VOCABULARY = (IM_END_ID, *ids("abcde"))


def distribution(prompt: Sequence[int]) -> list[tuple[int, float]]:
    """Token ids and log probabilities after a prompt, likeliest first."""
    generator = random.Random(str(list(prompt)))
    weights = {token_id: generator.random() ** 3 + 1e-3 for token_id in VOCABULARY}
    total = sum(weights.values())
    return sorted(((token_id, math.log(weight / total)) for token_id, weight in weights.items()), key=lambda item: -item[1])


def scores(request: engine_pb2.EngineRequest) -> list[engine_pb2.SequenceOutput]:
    """A script: the likeliest next token, with the alternatives."""
    top = distribution(request.prompt_token_ids)[: request.sampling.logprobs]
    entry = engine_pb2.TokenLogprobs(
        token_id=top[0][0], logprob=top[0][1], rank=1, top_token_ids=[t for t, _ in top], top_logprobs=[p for _, p in top]
    )
    end = {"finish_reason": common_pb2.FINISH_REASON_LENGTH, "usage": common_pb2.Usage(cached_tokens=1)}
    return [engine_pb2.SequenceOutput(token_ids=[top[0][0]], logprobs=[entry], **end)]


def reference(prompt: list[int], width: int, num_best: int, max_tokens: int, penalty: float) -> list[list[int]]:
    """A beam search without any shortcut: it never ends early."""
    live: list[tuple[list[int], float]] = [([], 0.0)]
    ended: list[tuple[list[int], float]] = []
    for _ in range(max_tokens):
        found = [([*text, t], s + p) for text, s in live for t, p in distribution([*prompt, *text])[: 2 * width]]
        ended += [one for one in found if one[0][-1] == IM_END_ID]
        live = sorted((one for one in found if one[0][-1] != IM_END_ID), key=lambda one: -one[1])[:width]
    ranked = sorted([*ended, *live], key=lambda one: -(one[1] / len(one[0]) ** penalty))
    return [text for text, _ in ranked[:num_best]]


@pytest.mark.parametrize(
    ("width", "num_best", "max_tokens", "penalty"), [(1, 1, 4, 1), (3, 2, 6, 1), (3, 3, 5, 0), (2, 2, 6, -1), (10, 4, 3, 2)]
)
async def test_beam_search_finds_what_a_plain_one_finds(width: int, num_best: int, max_tokens: int, penalty: float) -> None:
    search = BeamSearch(width=width, length_penalty=penalty)
    options = Options(n=num_best, beam_search=search, return_token_ids=True, sampling=Sampling(max_tokens=max_tokens, logprobs=1))
    async with frontend_bench(scores) as bench:
        for text in ("one", "two", "three"):
            answer = await bench.generation.Complete(Complete(text=text, options=options))
            expected = reference(ids(text), width, num_best, max_tokens, penalty)
            assert [list(choice.token_ids) for choice in answer.choices] == expected
            for choice in answer.choices:
                is_ended = choice.token_ids[-1] == IM_END_ID
                assert choice.finish_reason == (common_pb2.FINISH_REASON_STOP if is_ended else common_pb2.FINISH_REASON_LENGTH)
                assert [len(entry.top) for entry in choice.logprobs] == [1] * len(choice.token_ids)
            assert answer.usage.completion_tokens == sum(map(len, expected))


async def test_a_beam_search_fails_with_its_engine_and_ends_with_its_client() -> None:
    options = Options(beam_search=BeamSearch(width=2), sampling=Sampling(max_tokens=5))
    async with frontend_bench(says([])) as bench:
        error = await error_of(bench.generation.Complete(Complete(text="one", options=options)))
        assert "no log probabilities" in error.message
        await bench.engine.pause()
        call = bench.generation.Complete(Complete(text="one", options=options))
        await bench.engine.until(lambda: len(bench.engine.requests) == 2)
        call.cancel()
        await bench.engine.until(lambda: bench.engine.requests[-1].request_id in bench.engine.aborted)


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        (Options(bad_words=["a", " "]), "options.bad_words[1]", "empty"),
        (Options(affinity_key="k" * 513), "options.affinity_key", "at most 512 characters"),
        (Options(bad_words=["x" * 100]), "options.bad_words[0]", "at most 64 tokens"),
        (Options(truncate_prompt_tokens=0), "options.truncate_prompt_tokens", "[1, 256]"),
        (Options(n=3, best_of=2), "options.best_of", "[3, 128]"),
        (Options(best_of=2, beam_search=BeamSearch()), "options.best_of", "exclude"),
        (Options(beam_search=BeamSearch(width=11)), "options.beam_search.width", "[1, 10]"),
        (Options(beam_search=BeamSearch(length_penalty=11)), "options.beam_search.length_penalty", "10"),
        (Options(beam_search=BeamSearch(), stop=["x"]), "options.stop", "beam search"),
        (Options(beam_search=BeamSearch(), sampling=Sampling(min_tokens=1)), "options.sampling.min_tokens", "beam search"),
    ],
)
async def test_bad_options_are_refused_by_field(options: generation_pb2.GenerationOptions, field: str, message: str) -> None:
    async with frontend_bench() as bench:
        error = await error_of(bench.generation.Chat(chat_request(options=options)))
        assert not bench.engine.requests
    assert (type(error), error.field) == (InvalidRequestError, field)
    assert message in error.message


@pytest.mark.parametrize(
    ("options", "field"), [(Options(best_of=2), "options.best_of"), (Options(beam_search=BeamSearch()), "options.beam_search")]
)
async def test_what_is_chosen_at_the_end_is_not_streamed(options: generation_pb2.GenerationOptions, field: str) -> None:
    async with frontend_bench() as bench:
        with pytest.raises(AioRpcError) as caught:
            _ = [one async for one in bench.chat(chat_request(options=options))]
    assert from_rpc_error(caught.value).field == field


async def test_the_checkpoints_own_defaults_apply_where_the_client_set_none(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    own = {"temperature": 0.6, "top_k": 20, "do_sample": True, "max_new_tokens": 3}
    (model / "generation_config.json").write_text(json.dumps(own))
    options = Options(sampling=Sampling(temperature=0))
    for setting, found in (("none", (0.0, False)), ("auto", (0.0, True))):
        async with frontend_bench(model=model, generation_config=setting) as bench:
            await bench.generation.Chat(chat_request(options=options))
            sampling = bench.engine.requests[-1].sampling
            assert (sampling.temperature, sampling.HasField("top_k")) == found
            assert not sampling.HasField("max_tokens")
            (served,) = (await bench.generation.ListModels(generation_pb2.ListModelsRequest())).models
            assert served.capabilities.default_sampling.top_k == (20 if setting == "auto" else 0)
    async with frontend_bench(model=model) as bench:
        await bench.generation.Chat(chat_request())
        assert bench.engine.requests[-1].sampling.top_k == 20, "as other servers do"
    for bad in ('{"temperature": "warm"}', '{"top_p": 2}'):
        (model / "generation_config.json").write_text(bad)
        with pytest.raises(StartupError, match="generation_config"):
            async with frontend_bench(model=model, generation_config="auto"):
                pass
