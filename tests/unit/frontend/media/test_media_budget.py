"""Room for media files: who waits for it gets it, whatever others do meanwhile."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from triptych.errors import InvalidRequestError, ServiceUnavailableError
from triptych.v1 import generation_pb2
from triptych_common.media import uploads as uploads_module
from triptych_common.media.uploads import Uploads
from triptych_frontend.media.budget import MediaBudget


def _uploads(budget: MediaBudget, max_bytes: int) -> Uploads:
    return Uploads(budget.reserve, lambda context: context.tenant, max_bytes)


async def _upload(num_bytes: int) -> AsyncIterator[generation_pb2.UploadMediaRequest]:
    yield generation_pb2.UploadMediaRequest(header=generation_pb2.UploadMediaHeader(num_bytes=num_bytes))
    yield generation_pb2.UploadMediaRequest(data=b"x" * num_bytes)


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_upload_still_waits_when_a_call_takes_the_room_of_another_upload() -> None:
    budget = MediaBudget(10)
    uploads = _uploads(budget, 10)
    first = await uploads.receive(_upload(10))
    second = asyncio.create_task(uploads.receive(_upload(10)))
    await _turns()

    hold = budget.hold()
    content = uploads.look(first.upload_id, "", "media")
    uploads.drop(first.upload_id)
    hold.take(len(content), "media")
    await _turns()
    assert not second.done(), "it was refused although it may wait"

    hold.release()
    assert (await asyncio.wait_for(second, 1)).upload_id
    uploads.close()
    assert budget.used_bytes == 0


async def test_an_upload_that_stalls_gives_its_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stalls() -> AsyncIterator[generation_pb2.UploadMediaRequest]:
        async for message in _upload(10):
            yield message
            await asyncio.Event().wait()

    monkeypatch.setattr(uploads_module, "_MAX_PAUSE_S", 0.05)
    budget = MediaBudget(10)
    with pytest.raises(ServiceUnavailableError, match="stalled"):
        await asyncio.wait_for(_uploads(budget, 10).receive(stalls()), 5)
    assert budget.used_bytes == 0


async def test_an_upload_in_tiny_messages_takes_no_more_memory_than_its_bytes() -> None:
    async def tiny() -> AsyncIterator[generation_pb2.UploadMediaRequest]:
        yield generation_pb2.UploadMediaRequest(header=generation_pb2.UploadMediaHeader(num_bytes=40_000))
        for _ in range(20_000):
            await asyncio.sleep(0)
            yield generation_pb2.UploadMediaRequest(data=b"ab")

    uploads = _uploads(MediaBudget(40_000), 40_000)
    tracemalloc.start()
    try:
        response = await uploads.receive(tiny())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert uploads.look(response.upload_id, "", "media") == b"ab" * 20_000
    assert peak < 200_000
    uploads.close()


async def test_an_upload_has_no_empty_messages() -> None:
    async def empty() -> AsyncIterator[generation_pb2.UploadMediaRequest]:
        yield generation_pb2.UploadMediaRequest(header=generation_pb2.UploadMediaHeader(num_bytes=2))
        yield generation_pb2.UploadMediaRequest(data=b"")

    with pytest.raises(InvalidRequestError, match="no data"):
        await _uploads(MediaBudget(10), 10).receive(empty())


async def test_room_is_promised_to_one_caller_alone() -> None:
    budget = MediaBudget(10)
    small, large = budget.hold(), budget.hold()
    small.take(6, "media")
    large.take(4, "media")
    one, other = budget.hold(), budget.hold()
    waiting = [asyncio.create_task(hold.take_when_free(6, "media", 5.0)) for hold in (one, other)]
    await _turns()
    small.release()
    large.release()
    await _turns()
    assert waiting[0].done()
    assert not waiting[1].done(), "it was told of room that the first one took"
    one.release()
    await asyncio.wait_for(asyncio.gather(*waiting), 1)


async def test_a_caller_that_leaves_with_room_in_sight_makes_way_for_the_next() -> None:
    budget = MediaBudget(10)
    full = budget.hold()
    full.take(10, "media")
    one, other = budget.hold(), budget.hold()
    leaves = asyncio.create_task(one.take_when_free(10, "media", 5.0))
    stays = asyncio.create_task(other.take_when_free(10, "media", 5.0))
    await _turns()
    full.release()
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    await asyncio.wait_for(stays, 1)
    assert budget.used_bytes == 10
