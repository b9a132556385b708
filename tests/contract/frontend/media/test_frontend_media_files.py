"""What a frontend keeps of calls with media, and for how long: files, leases, places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from support.builders.frontend import joined
from support.drivers.media_frontend import IMAGE, OTHER, PICTURE, Item, MediaBench, media_bench, request
from support.waiting import until
from triptych.errors import (
    InvalidRequestError,
    QueueFullError,
)
from triptych.v1 import control_pb2, generation_pb2


async def test_bytes_and_leases_are_held_until_the_first_token() -> None:
    async with media_bench() as bench:
        await bench.engine.pause()
        answer = asyncio.create_task(bench.chat(PICTURE, "What is this?"))
        await until(lambda: bench.encoder.counts["fetch"] == 1)
        assert bench.encoder.released == []
        await bench.engine.pause(after_steps=1)
        await until(lambda: len(bench.encoder.released) == 1)
        assert bench.engine.live, "it goes on"
        await bench.engine.resume()
        await answer
        await bench.until_nothing_is_left()


async def test_files_of_live_calls_are_bounded() -> None:
    async with media_bench(max_live_media_bytes=len(PICTURE) + len(OTHER) - 1) as bench:
        budget = bench.bench.frontend._media.budget
        bench.encoder.gate = asyncio.Event()
        answer = asyncio.create_task(bench.chat(PICTURE, "What is this?"))
        await until(lambda: bench.encoder.counts["bytes"] == 1)
        error = await bench.error("And this?", OTHER)
        assert joined(await bench.chat("Text meanwhile"))
        bench.encoder.gate.set()
        await answer
        assert joined(await bench.chat("And this?", OTHER))
        too_much = await bench.error(PICTURE, OTHER)
        await bench.until_nothing_is_left()
    assert isinstance(error, QueueFullError)
    assert error.field == "messages[0].content[1].media"
    assert error.retry_after_s
    assert isinstance(too_much, InvalidRequestError), "waiting would not help"
    assert budget.used_bytes == 0


async def started_on_a_session(bench: MediaBench, *parts: str | bytes | Item) -> Any:
    """Start a call on a session of its own, and stop the engine after its first token. Returns the session."""
    await bench.engine.pause()
    call = generation_pb2.GenerationCall(number=7, request_id="r", chat=request(*parts))
    stream = bench.bench.generation.Session()
    await stream.write(generation_pb2.GenerationServiceSessionRequest(start=[call]))
    await until(lambda: bench.encoder.counts["fetch"] == 1)
    assert bench.bench.frontend._media.budget.used_bytes == len(PICTURE)
    await bench.engine.pause(after_steps=1)
    await until(lambda: bench.bench.frontend._media.budget.used_bytes == 0)
    return stream


async def test_files_are_spare_from_the_first_token_on() -> None:
    async with media_bench(max_live_media_bytes=len(PICTURE) + len(OTHER) - 1) as bench:
        budget = bench.bench.frontend._media.budget
        stream = await started_on_a_session(bench, PICTURE, "What is this?")
        assert budget.spare_bytes == len(PICTURE)
        assert bench.engine.live, "it goes on"
        other = asyncio.create_task(bench.chat("And this?", OTHER))
        await until(lambda: budget.used_bytes == len(OTHER))
        assert budget.spare_bytes == 0, "the other call needed the room"
        await bench.engine.resume()
        assert joined(await other)
        await stream.done_writing()
        await bench.until_nothing_is_left()
        assert (budget.used_bytes, budget.spare_bytes) == (0, 0)


async def test_spare_files_are_let_go_at_the_end() -> None:
    async with media_bench() as bench:
        budget = bench.bench.frontend._media.budget
        stream = await started_on_a_session(bench, PICTURE, "What is this?")
        await bench.engine.resume()
        await stream.done_writing()
        await bench.until_nothing_is_left()
        assert (budget.used_bytes, budget.spare_bytes) == (0, 0)


@pytest.mark.parametrize(
    "parts",
    [
        (PICTURE, b"no picture"),
        (PICTURE, Item(modality=IMAGE, url="https://127.0.0.1/a.png")),
        (PICTURE, "word " * 5000),
        (PICTURE, Item(modality=IMAGE, url="data:image/png;base64,")),
    ],
    ids=["bad", "forbidden", "too-long", "empty"],
)
async def test_files_of_calls_that_fail_are_let_go(parts: tuple[str | bytes | Item, ...]) -> None:
    async with media_bench() as bench:
        assert isinstance(await bench.error(*parts), InvalidRequestError)
        await bench.until_nothing_is_left()
        assert bench.bench.frontend._media.budget.used_bytes == 0


async def test_calls_with_media_take_a_place() -> None:
    async with media_bench(max_live_requests=1) as bench:
        bench.encoder.gate = asyncio.Event()
        answer = asyncio.create_task(bench.chat(PICTURE, "What is this?"))
        await until(lambda: bench.encoder.counts["bytes"] == 1)
        assert isinstance(await bench.error("Hi"), QueueFullError)
        bench.encoder.gate.set()
        await answer


async def test_a_draining_frontend_takes_no_uploads_until_it_is_woken() -> None:
    async def parts() -> AsyncIterator[generation_pb2.UploadMediaRequest]:
        yield generation_pb2.UploadMediaRequest(header=generation_pb2.UploadMediaHeader(num_bytes=3))
        yield generation_pb2.UploadMediaRequest(data=b"abc")

    async with media_bench() as bench:
        generation, control = bench.bench.generation, bench.bench.control
        assert (await control.Drain(control_pb2.DrainRequest(timeout_s=5))).drained
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generation.UploadMedia(parts())
        await control.WakeUp(control_pb2.WakeUpRequest())
        assert (await generation.UploadMedia(parts())).upload_id
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
