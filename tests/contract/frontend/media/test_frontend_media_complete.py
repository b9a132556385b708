"""Complete and CompleteStream with media, between a fake engine that fetches and a fake encoder, all on real gRPC."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError
from support.builders.frontend import ids, joined, last_delta
from support.drivers.media_frontend import IMAGE, KEY, OTHER, PICTURE, MediaBench, complete_request, media_bench
from support.drivers.media_frontend import request as chat_of
from support.fakes.engine import says, says_with_logprobs
from support.waiting import until
from triptych.errors import InvalidRequestError, ServiceUnavailableError, TriptychError
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, encoder_pb2, generation_pb2

Options = generation_pb2.GenerationOptions
Sampling = common_pb2.SamplingParams
PROMPT = "<|im_start|>user\n<image>\nWhat is this?<|im_end|>\n"
#: Tokens of a picture in the small LLaVA.
NUM_EMBEDS = 16


async def collect(call: Any) -> list[Any]:
    return [response async for response in call]


async def error_of(bench: MediaBench, request: generation_pb2.CompleteRequest) -> TriptychError:
    with pytest.raises(AioRpcError) as caught:
        await bench.bench.generation.Complete(request)
    return from_rpc_error(caught.value)


def reports_in(trailers: Any) -> list[generation_pb2.MediaReport]:
    return [generation_pb2.MediaReport.FromString(value) for key, value in trailers if key == "triptych-media-bin"]


async def test_a_picture_is_encoded_fetched_and_answered() -> None:
    async with media_bench(says(ids(" A cat"))) as bench:
        call = bench.bench.generation.Complete(complete_request(PROMPT, PICTURE))
        answer = await call
        trailers = await call.trailing_metadata()
        (request,) = bench.engine.requests
        await bench.until_nothing_is_left()
        assert bench.bench.frontend._media.budget.used_bytes == 0
    assert answer.choices[0].text == " A cat"
    (ref,), (found,) = request.media, request.placeholders
    assert (ref.key, found.length, found.media_index) == (KEY, NUM_EMBEDS, 0)
    assert len(request.prompt_token_ids) == answer.usage.prompt_tokens
    assert (answer.usage.image_tokens, answer.usage.audio_tokens) == (NUM_EMBEDS, 0)
    (report,) = answer.media
    assert (report.modality, report.key, report.num_tokens) == (IMAGE, KEY, NUM_EMBEDS)
    assert (report.tier, report.source) == (encoder_pb2.CACHE_TIER_MISS, common_pb2.EMBEDDING_SOURCE_ENCODER)
    assert reports_in(trailers) == [report]
    assert bench.encoder.counts == {"key": 1, "bytes": 1, "fetch": 1}


async def test_it_is_the_request_of_the_chat() -> None:
    async with media_bench() as bench:
        await bench.chat(PICTURE, "What is this?")
        text = PROMPT + "<|im_start|>assistant\n"
        for prompt in (text, ids_of(bench, text)):
            await bench.bench.generation.Complete(complete_request(prompt, PICTURE))
        chat, *others = bench.engine.requests
        await bench.until_nothing_is_left()
    for request in others:
        request.request_id = chat.request_id
        request.media[0].lease_id = chat.media[0].lease_id
        request.sampling.seed = chat.sampling.seed  # drawn for each
        assert request == chat
    assert bench.encoder.counts["bytes"] == 1


def ids_of(bench: MediaBench, text: str) -> list[int]:
    return bench.bench.frontend._tokenizer.encode(text, add_special_tokens=False)


async def test_a_stream_reports_its_media_at_its_end() -> None:
    async with media_bench(says(ids("A cat and a dog"))) as bench:
        call = bench.bench.complete(complete_request("<image> and <image>:", PICTURE, OTHER))
        responses = await collect(call)
        trailers = await call.trailing_metadata()
        await bench.until_nothing_is_left()
    assert joined(responses) == "A cat and a dog"
    assert [len(response.media) for response in responses] == [0] * (len(responses) - 1) + [2]
    assert reports_in(trailers) == [*responses[-1].media]
    assert responses[-1].usage.image_tokens == 2 * NUM_EMBEDS


def calls(**requests: Any) -> list[generation_pb2.GenerationCall]:
    """A call of each request, numbered from 0."""
    return [
        generation_pb2.GenerationCall(number=number, request_id=name, **one) for number, (name, one) in enumerate(requests.items())
    ]


async def ends_on_a_session(
    bench: MediaBench, started: list[generation_pb2.GenerationCall]
) -> list[generation_pb2.GenerationCallResponse]:
    """The last response of each call, by number."""
    stream = bench.bench.generation.Session()
    await stream.write(generation_pb2.GenerationServiceSessionRequest(start=started))
    ended: dict[int, generation_pb2.GenerationCallResponse] = {}
    while len(ended) < len(started):
        message = await stream.read()
        ended |= {one.number: one for one in message.responses if one.HasField("usage") or one.HasField("error")}
    await stream.done_writing()
    return [ended[number] for number in sorted(ended)]


async def test_a_session_reports_them_too() -> None:
    good, bad = complete_request(PROMPT, PICTURE), complete_request("No placeholder", PICTURE)
    async with media_bench() as bench:
        answered, refused = await ends_on_a_session(bench, calls(good={"complete": good}, bad={"complete": bad}))
        await bench.until_nothing_is_left()
        assert bench.bench.frontend._media.budget.used_bytes == 0
    assert [report.key for report in answered.media] == [KEY]
    assert refused.error.field == "media"


async def test_tenants_share_no_embeddings_and_have_their_own_uploads() -> None:
    context = common_pb2.CallContext(tenant="first")
    async with media_bench() as bench:

        async def uploaded() -> generation_pb2.CompleteRequest:
            header = generation_pb2.UploadMediaHeader(num_bytes=len(PICTURE), context=context)
            parts = (generation_pb2.UploadMediaRequest(header=header), generation_pb2.UploadMediaRequest(data=PICTURE))
            response = await bench.bench.generation.UploadMedia(iter(parts))
            return complete_request(PROMPT, common_pb2.MediaItem(modality=IMAGE, upload_id=response.upload_id))

        own, foreign = await uploaded(), await uploaded()
        chat, complete, other = await ends_on_a_session(
            bench,
            calls(
                chat={"chat": chat_of(PICTURE, "What is this?"), "context": context},
                own={"complete": own, "context": context},
                foreign={"complete": foreign, "context": common_pb2.CallContext(tenant="second")},
            ),
        )
        await bench.until_nothing_is_left()
    assert complete.media[0].key == chat.media[0].key != KEY
    assert other.error.field.startswith("media[0]")


@pytest.mark.parametrize("by_ids", [False, True])
async def test_an_echo_shows_the_prompt_as_given_and_its_logprobs_all_tokens(by_ids: bool) -> None:
    text = "The é <image>, <image>\nfox"
    async with media_bench(says_with_logprobs(ids(" jumps"), *ids("\n"))) as bench:
        options = Options(sampling=Sampling(logprobs=1), return_token_ids=True)
        prompt = ids_of(bench, text) if by_ids else text
        responses = await collect(bench.bench.complete(complete_request(prompt, PICTURE, OTHER, echo=True, options=options)))
        (request,) = bench.engine.requests
        (image_id,) = ids_of(bench, "<image>")
        await bench.until_nothing_is_left()
    assert joined(responses) == text + " jumps"
    entries = [entry for response in responses for entry in response.choices[0].logprobs]
    token_ids = [token_id for response in responses for token_id in response.choices[0].token_ids]
    assert [entry.token_id for entry in entries] == token_ids == [*request.prompt_token_ids, *ids(" jumps")]
    places = [text.index("<image>"), text.rindex("<image>")]
    offsets = [entry.text_offset for entry in entries if entry.token_id == image_id]
    assert offsets == [places[0]] * NUM_EMBEDS + [places[1]] * NUM_EMBEDS
    whole = text + " jumps"
    for entry in entries:
        if entry.token_id != image_id and "\ufffd" not in entry.token:
            assert whole.startswith(entry.token, entry.text_offset), entry


async def test_prompt_logprobs_choices_and_best_of() -> None:
    async with media_bench(says_with_logprobs(ids("ab"), *ids("\n"))) as bench:
        options = Options(sampling=Sampling(prompt_logprobs=1), n=2, best_of=3)
        answer = await bench.bench.generation.Complete(complete_request(PROMPT, PICTURE, options=options))
        (request,) = bench.engine.requests
        await bench.until_nothing_is_left()
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [entry.token_id for entry in answer.choices[0].prompt_logprobs] == [*request.prompt_token_ids]
    assert (request.n, len(answer.media), bench.encoder.counts["bytes"]) == (3, 1, 1)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (Options(truncate_prompt_tokens=4), "options.truncate_prompt_tokens"),
        (Options(beam_search=generation_pb2.BeamSearch(width=2)), "options.beam_search"),
    ],
)
async def test_options_that_are_not_for_media_are_refused(options: Options, field: str) -> None:
    async with media_bench() as bench:
        error = await error_of(bench, complete_request(PROMPT, PICTURE, options=options))
        assert bench.bench.frontend._media.budget.used_bytes == 0
        assert bench.engine.requests == []
        await bench.until_nothing_is_left()
    assert isinstance(error, InvalidRequestError)
    assert (error.field, "prompts with media" in error.message) == (field, True)


async def test_a_prompt_that_is_too_long_names_the_prompt_and_gives_the_bytes_back() -> None:
    async with media_bench(max_model_len=NUM_EMBEDS + 8) as bench:
        error = await error_of(bench, complete_request(PROMPT, PICTURE))
        assert bench.bench.frontend._media.budget.used_bytes == 0
        await bench.until_nothing_is_left()
    assert (error.field, error.reason) == ("prompt", "CONTEXT_LENGTH_EXCEEDED")


async def test_embeddings_that_are_lost_are_made_again() -> None:
    async with media_bench() as bench:
        bench.encoder.num_lost_before_fetch = 1
        responses = await collect(bench.bench.complete(complete_request(PROMPT, PICTURE)))
        assert last_delta(responses).finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert (bench.encoder.counts["bytes"], bench.counts["again"], bench.counts["failed"]) == (2, 1, 0)
        bench.encoder.num_lost_before_fetch = 99
        error = await error_of(bench, complete_request(f"<image>{PROMPT}", OTHER, PICTURE))
        await bench.until_nothing_is_left()
        assert bench.bench.frontend._media.budget.used_bytes == 0
    assert isinstance(error, ServiceUnavailableError)
    assert (error.field, error.message) == ("media[0]", "media[0]: the encoder does not hold it")


async def test_a_bad_item_fails_its_call_and_names_itself() -> None:
    async with media_bench() as bench:
        await bench.bench.generation.Complete(complete_request(PROMPT, PICTURE))
        bench.encoder.item_errors = [InvalidRequestError("the image is truncated", field="data")]
        error = await error_of(bench, complete_request(f"<image>{PROMPT}", PICTURE, OTHER))
        await bench.until_nothing_is_left()
    assert isinstance(error, InvalidRequestError)
    assert (error.field, error.message) == ("media[1]", "media[1]: the image is truncated")


@pytest.mark.parametrize("prompt", [PROMPT, "no placeholder"])
@pytest.mark.parametrize(("modality", "field"), [(0, "media[0].modality"), (common_pb2.MODALITY_AUDIO, "media[0]")])
async def test_an_item_of_no_modality_or_a_wrong_one_is_named(prompt: str, modality: common_pb2.Modality, field: str) -> None:
    async with media_bench() as bench:
        error = await error_of(bench, complete_request(prompt, common_pb2.MediaItem(modality=modality, data=PICTURE)))
        assert bench.bench.frontend._media.budget.used_bytes == 0
    assert isinstance(error, InvalidRequestError)
    assert error.field == field
    assert "placeholder" not in error.message
    assert "given: " not in error.message


async def test_a_client_that_leaves_leaves_nothing() -> None:
    async with media_bench() as bench:
        bench.encoder.gate = asyncio.Event()
        budget = bench.bench.frontend._media.budget
        call = bench.bench.complete(complete_request(PROMPT, PICTURE))
        await bench.engine.until(lambda: bool(bench.engine.requests))
        assert budget.used_bytes == len(PICTURE)
        call.cancel()
        await bench.until_nothing_is_left()
        assert not bench.encoder.held
        await until(lambda: budget.used_bytes == 0)
    assert await call.code() == grpc.StatusCode.CANCELLED


async def test_salts_and_names_are_those_of_the_chat() -> None:
    named = common_pb2.MediaItem(modality=IMAGE, data=PICTURE, uuid="cat")
    name = common_pb2.MediaItem(modality=IMAGE, uuid="cat")
    salted = Options(cache_salt="salt")
    async with media_bench() as bench:
        first = await bench.bench.generation.Complete(complete_request(PROMPT, named, options=salted))
        again = await bench.bench.generation.Complete(complete_request(PROMPT, name, options=salted))
        error = await error_of(bench, complete_request(PROMPT, name))
        await bench.until_nothing_is_left()
    assert first.media[0].key == again.media[0].key != KEY
    assert error.field == "media[0].uuid"
