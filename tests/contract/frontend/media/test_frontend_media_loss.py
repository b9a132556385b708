"""Calls with media whose embeddings, encoders or engine go away."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
import support.builders.media_files as media
from support.builders.frontend import frontend_bench, joined
from support.drivers.media_frontend import IMAGE, PICTURE, Item, MediaBench, media_bench, request
from support.fakes.encoder import FakeEncoder
from support.fakes.engine import Script, fails, says
from support.fakes.media_engine import FakeMediaEngine
from support.grpc_server import serving
from support.waiting import until
from triptych.errors import (
    EmbeddingUnavailableError,
    InternalError,
    InvalidRequestError,
    QueueFullError,
    ServiceUnavailableError,
    TriptychError,
)
from triptych.v1 import common_pb2, engine_pb2, generation_pb2
from triptych_common.model.store import model_info
from triptych_common.rpc.status import to_request_error


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_embeddings_lost_before_they_were_fetched_are_made_again(num_choices: int) -> None:
    async with media_bench() as bench:
        bench.encoder.num_lost_before_fetch = 1
        responses = await bench.chat(PICTURE, "What is this?", n=num_choices)
        await bench.until_nothing_is_left()
    assert {choice.index for response in responses for choice in response.choices} == set(range(num_choices))
    assert bench.encoder.counts["bytes"] == 2
    assert (bench.counts["again"], bench.counts["failed"]) == (1, 0)
    assert bench.counts["resubmitted"] >= 1


async def test_embeddings_that_are_lost_each_time_end_the_call() -> None:
    async with media_bench() as bench:
        bench.encoder.num_lost_before_fetch = 99
        error = await bench.error(PICTURE, "What is this?")
        bench.encoder.num_lost_before_fetch = 0
        assert joined(await bench.chat(PICTURE, "And now?"))
        await bench.until_nothing_is_left()
    assert isinstance(error, ServiceUnavailableError)
    assert error.message == "messages[0].content[0].media: the encoder does not hold it"
    assert error.field == "messages[0].content[0].media"
    assert (bench.counts["resubmitted"], bench.counts["failed"]) == (3, 1)


@pytest.mark.parametrize(
    ("errors", "expected"), [([QueueFullError("full", retry_after_s=2)] * 9, QueueFullError), ([], ServiceUnavailableError)]
)
async def test_an_encoder_that_cannot_ends_the_call_alone(errors: list[TriptychError], expected: type[TriptychError]) -> None:
    async with media_bench() as bench:
        bench.encoder.call_errors = list(errors) or [ServiceUnavailableError("the encoder is stopping")] * 9
        error = await bench.error(PICTURE, "What is this?")
        assert joined(await bench.chat("Hi"))
        await bench.until_nothing_is_left()
        assert not bench.engine.live
    assert type(error) is expected
    assert error.field == "messages[0].content[0].media"
    assert bench.counts["failed"] == 1


async def test_an_encoder_killed_while_it_encodes() -> None:
    path = media.checkpoint("llava_siglip")
    encoder = FakeEncoder(model_info(path, path.name), lambda item: 16)
    encoder.gate = asyncio.Event()
    async with serving(encoder.register, 0) as address:
        pass
    port = int(address.rpartition(":")[2])
    async with frontend_bench(says([20]), model=path, engine_class=FakeMediaEngine, encoder_addresses=(address,)) as found:
        async with serving(encoder.register, port):
            bench = MediaBench(found, encoder)
            answer = asyncio.create_task(bench.error(PICTURE, "What is this?"))
            await bench.engine.until(lambda: bool(bench.engine.requests))
        error = await answer
        assert joined(await bench.chat("Text meanwhile"))
        encoder.gate.set()
        async with serving(encoder.register, port):
            assert joined(await bench.chat(PICTURE, "What is this?"))
            await bench.until_nothing_is_left()
    assert isinstance(error, ServiceUnavailableError)
    assert error.retry_after_s is not None


async def test_an_encoder_killed_while_it_encodes_has_a_successor() -> None:
    path = media.checkpoint("llava_siglip")
    encoders = [FakeEncoder(model_info(path, path.name), lambda item: 16) for _ in range(2)]
    for encoder in encoders:
        encoder.gate = asyncio.Event()
    async with AsyncExitStack() as stack:
        servers = [AsyncExitStack() for _ in encoders]
        addresses = []
        for encoder, server in zip(encoders, servers, strict=True):
            stack.push_async_exit(server)
            addresses.append(await server.enter_async_context(serving(encoder.register)))
        found = await stack.enter_async_context(
            frontend_bench(says([20]), model=path, engine_class=FakeMediaEngine, encoder_addresses=tuple(addresses))
        )
        await until(lambda: len(found.frontend._encoders.ready) == 2)
        answer = asyncio.create_task(MediaBench(found, encoders[0]).chat(PICTURE, "What is this?"))
        await found.engine.until(lambda: bool(found.engine.requests))
        await until(lambda: any(encoder.counts["bytes"] for encoder in encoders))
        home = next(index for index, encoder in enumerate(encoders) if encoder.counts["bytes"])
        encoders[1 - home].gate.set()
        await servers[home].aclose()
        responses = await answer
    assert joined(responses)
    assert encoders[1 - home].counts == {"key": 1, "bytes": 1, "fetch": 1}
    first, second = found.engine.requests
    assert [one.media[0].encoder_instance_id for one in (first, second)] == [
        encoders[home].instance.id,
        encoders[1 - home].instance.id,
    ]


async def test_a_name_whose_embeddings_are_gone_asks_for_the_item() -> None:
    async with media_bench() as bench:
        await bench.chat(Item(modality=IMAGE, data=PICTURE, uuid="cat"), "What is this?")
        assert joined(await bench.chat(Item(modality=IMAGE, uuid="cat"), "And now?"))
        bench.encoder.held.clear()
        bench.engine.prefix_cached.clear()
        error = await bench.error(Item(modality=IMAGE, uuid="cat"), "And now?")
        await bench.until_nothing_is_left()
    assert isinstance(error, InvalidRequestError)
    assert error.field == "messages[0].content[0].media.uuid"
    assert "send the item itself" in error.message


@pytest.mark.usefixtures("short_grace")
async def test_an_engine_that_goes_away_ends_the_call() -> None:
    async with media_bench() as bench:
        bench.encoder.gate = asyncio.Event()
        error = asyncio.create_task(bench.error(PICTURE, "What is this?"))
        await bench.engine.until(lambda: bool(bench.engine.requests))
        await bench.engine.go_down()
        assert isinstance(await error, ServiceUnavailableError)
        await bench.engine.come_back()
        await bench.bench.until_ready()
        bench.encoder.gate.set()
        assert joined(await bench.chat(PICTURE, "What is this?"))
        await bench.until_nothing_is_left()


def loses_its_media(after: int, token_ids: list[int]) -> Script:
    """A script: each request says the tokens that its prompt does not have yet. The first loses its embeddings after some."""
    lost = to_request_error(EmbeddingUnavailableError("media[0]: the encoder does not hold it", field="media[0]"))
    prompts: list[int] = []

    def script(request: engine_pb2.EngineRequest) -> list[engine_pb2.SequenceOutput]:
        prompts.append(len(request.prompt_token_ids))
        if len(prompts) == 1:
            said = [engine_pb2.SequenceOutput(token_ids=[token_id]) for token_id in token_ids[:after]]
            return [*said, engine_pb2.SequenceOutput(finish_reason=common_pb2.FINISH_REASON_ERROR, error=lost)]
        return list(says(token_ids[prompts[-1] - prompts[0] :])(request))

    return script


async def test_a_sequence_goes_on_after_its_embeddings_were_lost() -> None:
    """As when it was preempted after its first tokens, and neither engine nor encoder has the embeddings any more."""
    async with media_bench() as bench:
        whole = joined(await bench.chat("Text alone"))
        bench.engine.requests.clear()
        bench.engine.script = loses_its_media(2, [20, 21, 22])
        await bench.engine.pause()
        sampling = common_pb2.SamplingParams(max_tokens=10, min_tokens=1)
        answer = asyncio.create_task(bench.chat(PICTURE, "What is this?", sampling=sampling))
        await until(lambda: bench.encoder.counts["fetch"] == 1)
        await bench.engine.pause(after_steps=2)
        await until(lambda: len(bench.encoder.released) == 1)
        bench.encoder.held.clear()
        bench.engine.prefix_cached.clear()
        await bench.engine.resume()
        responses = await answer
        await bench.until_nothing_is_left()
    assert joined(responses) == whole
    assert bench.encoder.counts["bytes"] == 2
    first, again = bench.engine.requests
    assert list(again.prompt_token_ids) == [*first.prompt_token_ids, 20, 21]
    assert again.num_output_tokens == 2
    assert again.sampling == first.sampling
    assert again.request_id != first.request_id
    usage = responses[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(first.prompt_token_ids), 3)
    assert (bench.counts["again"], bench.counts["resubmitted"], bench.counts["failed"]) == (1, 1, 0)


async def test_one_choice_goes_on_while_others_run() -> None:
    async with media_bench() as bench:
        whole = joined(await bench.chat("Text alone"))
        bench.engine.script = loses_its_media(2, [20, 21, 22])
        responses = await bench.chat(PICTURE, "What is this?", n=3)
        await bench.until_nothing_is_left()
    assert [joined(responses, index) for index in range(3)] == [whole] * 3
    assert (bench.counts["resubmitted"], bench.counts["failed"]) == (1, 0)


@pytest.mark.parametrize(
    "sampling", [common_pb2.SamplingParams(seed=1), common_pb2.SamplingParams(presence_penalty=1, temperature=0)]
)
async def test_seeds_and_penalties_count_the_output_where_a_sequence_goes_on(sampling: common_pb2.SamplingParams) -> None:
    async with media_bench() as bench:
        whole = joined(await bench.chat("Text alone"))
        bench.engine.requests.clear()
        bench.engine.script = loses_its_media(1, [20, 21, 22])
        answer = joined(await bench.chat(PICTURE, "What is this?", sampling=sampling))
        first, again = bench.engine.requests
        await bench.until_nothing_is_left()
    assert answer == whole
    assert again.sampling == first.sampling
    assert (again.num_output_tokens, bench.counts["resubmitted"], bench.counts["failed"]) == (1, 1, 0)


async def test_embeddings_lost_with_the_file_end_the_call_in_words() -> None:
    async with media_bench() as bench:
        bench.engine.script = loses_its_media(1, [20, 21, 22])
        await bench.engine.pause()
        call = generation_pb2.GenerationCall(number=7, request_id="r", chat=request(PICTURE, "What is this?"))
        stream = bench.bench.generation.Session()
        await stream.write(generation_pb2.GenerationServiceSessionRequest(start=[call]))
        await until(lambda: bench.encoder.counts["fetch"] == 1)
        await bench.engine.pause(after_steps=1)
        budget = bench.bench.frontend._media.budget
        await until(lambda: budget.spare_bytes == len(PICTURE))
        budget.make_room(budget.max_bytes)  # as a call with large files does
        bench.encoder.held.clear()
        bench.engine.prefix_cached.clear()
        await bench.engine.resume()
        errors: list[common_pb2.RequestError] = []
        while not errors:
            message = await stream.read()
            errors = [response.error for response in message.responses if response.HasField("error")]
        await stream.done_writing()
        await bench.until_nothing_is_left()
    assert errors[0].reason == "SERVICE_UNAVAILABLE"
    assert errors[0].field == "messages[0].content[0].media"
    assert errors[0].retry_after_s


async def test_an_encoder_with_other_weights_is_no_fault_of_the_request() -> None:
    async with media_bench() as bench:
        bench.encoder.item_errors = [InvalidRequestError("the key is not that of the bytes", field="key")]
        assert joined(await bench.chat(PICTURE, "What is this?"))
        assert bench.counts["same_encoder"] == 1


async def test_an_encoders_own_failure_that_comes_through_the_engine_is_tried_again() -> None:
    async with media_bench() as bench:
        failure = to_request_error(InternalError("the encoder failed", field="media[0]"))
        good = bench.engine.script

        def script(request: engine_pb2.EngineRequest) -> list[engine_pb2.SequenceOutput]:
            is_first = len(bench.engine.requests) == 1
            return list((fails(failure) if is_first else good)(request))

        bench.engine.script = script
        bench.engine.requests.clear()
        assert joined(await bench.chat(PICTURE, "What is this?"))
        await bench.until_nothing_is_left()
    assert bench.counts["resubmitted"] == 1
