"""The encoder client, step by step, against fake encoders on real gRPC."""

from __future__ import annotations

import asyncio

import pytest
from support.drivers.encoder_client import encoders, ensure, item
from support.waiting import until
from triptych.errors import (
    EmbeddingUnavailableError,
    InternalError,
    InvalidRequestError,
    QueueFullError,
    ServiceUnavailableError,
    TriptychError,
)
from triptych_common.cluster import encoder as cluster_encoder
from triptych_frontend.encoders import client as encoder_client
from triptych_frontend.encoders.encoding import MediaEncoding


async def test_bytes_travel_once() -> None:
    async with encoders() as bench:
        for _ in range(2):
            encoding = await ensure(bench.client, [item()])
            (ref,) = encoding.refs
            assert ref.lease_id
            assert ref.encoder_instance_id in {fake.instance.id for fake in bench.fakes}
            await encoding.close()
        home, other = bench.home(item())
        await bench.client.close()
    assert (home.counts, other.counts) == ({"key": 2, "bytes": 1}, {})
    assert bench.client.counts == {"bytes_sent": 1, "miss": 1, "local": 1}
    assert len(home.released) == 2


async def test_equal_items_of_a_call_are_encoded_once() -> None:
    async with encoders() as bench:
        encoding = await ensure(bench.client, [item(), item(b"other"), item()])
        refs = encoding.refs
        assert refs[0] == refs[2] != refs[1]
        assert all(found.result.num_tokens == 4 for ref in refs if (found := encoding.result_of(ref.key)) is not None)
        await encoding.close()
    assert sum(fake.counts["bytes"] for fake in bench.fakes) == 2


async def test_references_are_there_before_the_embeddings() -> None:
    async with encoders() as bench:
        home, _ = bench.home(item())
        home.gate = asyncio.Event()
        encoding = MediaEncoding(bench.client, [item()])
        await encoding.announced()
        assert home.counts["key"] == 1
        (ref,) = encoding.refs
        assert (ref.encoder_instance_id, ref.lease_id) == (home.instance.id, "")
        home.gate.set()
        await encoding.wait()
        assert encoding.refs[0].lease_id
        await encoding.close()


@pytest.mark.parametrize(
    ("call_errors", "item_errors", "rungs"),
    [
        ([ServiceUnavailableError("away")], [], {"same_encoder": 1}),
        ([], [InternalError("broken")], {"same_encoder": 1}),
        ([ServiceUnavailableError("away")] * 2, [], {"same_encoder": 1, "other_encoder": 1}),
        ([], [QueueFullError("full")], {"other_encoder": 1}),
    ],
)
async def test_the_ladder(call_errors: list[TriptychError], item_errors: list[TriptychError], rungs: dict[str, int]) -> None:
    async with encoders() as bench:
        home, _ = bench.home(item())
        home.call_errors, home.item_errors = list(call_errors), list(item_errors)
        encoding = await ensure(bench.client, [item()])
        await encoding.close()
    counts = bench.client.counts
    assert {name: counts[name] for name in ("same_encoder", "other_encoder", "failed") if counts[name]} == rungs


async def test_after_the_last_rung_the_error_names_the_item() -> None:
    async with encoders() as bench:
        for fake in bench.fakes:
            fake.call_errors = [ServiceUnavailableError("away", retry_after_s=3)] * 9
        with pytest.raises(ServiceUnavailableError, match=r"messages\[0\].content\[0\].media: away") as caught:
            await ensure(bench.client, [item()])
    assert (caught.value.field, caught.value.retry_after_s) == ("messages[0].content[0].media", 3)
    assert bench.client.counts["failed"] == 1


async def test_a_bad_item_is_tried_once() -> None:
    async with encoders() as bench:
        home, other = bench.home(item())
        home.item_errors = [InvalidRequestError("the image is truncated", field="data")]
        with pytest.raises(InvalidRequestError, match="truncated") as caught:
            await ensure(bench.client, [item(), item(b"good")])
    assert caught.value.field == "messages[0].content[0].media"
    assert home.counts["bytes"] + other.counts["bytes"] <= 2


async def test_a_header_that_lied_is_told() -> None:
    async with encoders(num_tokens=3) as bench:
        home, _ = bench.home(item())
        with pytest.raises(InvalidRequestError, match="it has 3 embeddings, not 4"):
            await ensure(bench.client, [item()])
    assert len(home.released) == 1


async def test_an_encoder_whose_process_has_stopped_is_left_behind_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection stands. It need not be waited for as long as one that encodes a film."""
    monkeypatch.setattr(cluster_encoder, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(cluster_encoder, "_PROBE_TIMEOUT_S", 0.2)
    async with encoders(encode_timeout_s=60) as bench:
        home, other = bench.home(item())
        home.answers = asyncio.Event()
        async with asyncio.timeout(5):
            encoding = await ensure(bench.client, [item()])
        await encoding.close()
        home.answers.set()
    assert other.counts["bytes"] == 1


async def test_an_encoder_that_takes_long_and_says_who_it_is_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_encoder, "_PATIENCE_S", 0.05)
    async with encoders(encode_timeout_s=60) as bench:
        home, other = bench.home(item())
        home.gate = asyncio.Event()
        encoding = asyncio.create_task(ensure(bench.client, [item()]))
        await asyncio.sleep(0.4)
        assert not encoding.done()
        home.gate.set()
        await (await encoding).close()
    assert (home.counts["bytes"], other.counts["bytes"]) == (1, 0)


async def test_an_encoder_that_hangs_is_left_behind() -> None:
    async with encoders(encode_timeout_s=0.3) as bench:
        home, other = bench.home(item())
        home.gate = asyncio.Event()
        encoding = await ensure(bench.client, [item()])
        await encoding.close()
    assert other.counts["bytes"] == 1
    assert bench.client.counts["other_encoder"] == 1


async def test_lost_embeddings_are_made_again_from_bytes_that_were_kept() -> None:
    async with encoders() as bench:
        items = [item()]
        encoding = await ensure(bench.client, items)
        home, _ = bench.home(items[0])
        home.held.clear()
        encoding.lose()
        await encoding.wait()
        assert home.counts["bytes"] == 2
        items[0].file.drop()
        for fake in bench.fakes:
            fake.held.clear()
        encoding.lose()
        with pytest.raises(EmbeddingUnavailableError, match="no longer holds"):
            await encoding.wait()
        await encoding.close()
    assert (bench.client.counts["again"], bench.client.counts["failed"]) == (2, 1)


async def test_a_name_alone_is_asked_for_the_item() -> None:
    async with encoders() as bench:
        with pytest.raises(InvalidRequestError, match="send the item itself") as caught:
            await ensure(bench.client, [item(None)])
    assert caught.value.field == "messages[0].content[0].media.uuid"


async def test_a_settled_item_needs_no_encoder() -> None:
    async with encoders() as bench:
        home, _ = bench.home(item())
        home.gate = asyncio.Event()
        encoding = MediaEncoding(bench.client, [item()])
        await encoding.announced()
        encoding.settle()
        await encoding.wait()
        home.gate.set()
        encoding.lose()
        await encoding.wait()
        assert encoding.refs[0].lease_id, "a preempted request needs it after all"
        await encoding.close()


async def test_closing_stops_what_runs() -> None:
    async with encoders() as bench:
        home, _ = bench.home(item())
        home.gate = asyncio.Event()
        encoding = MediaEncoding(bench.client, [item()])
        await encoding.announced()
        await encoding.close()
        home.gate.set()
        assert home.released == []


async def test_the_engine_need_not_wait_for_an_encoder_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_client, "_ASK_S", 0.05)
    async with encoders(1, encode_timeout_s=30) as bench:
        bench.fakes[0].answers = asyncio.Event()
        encoding = MediaEncoding(bench.client, [item()])
        await asyncio.wait_for(encoding.announced(), 1)
        assert encoding.refs[0].encoder_instance_id == bench.fakes[0].instance.id
        await encoding.close()


async def test_another_encoder_takes_over_from_one_whose_address_is_gone() -> None:
    async with encoders() as bench:
        home, other = bench.home(item())
        home.gate = asyncio.Event()
        encoding = MediaEncoding(bench.client, [item()])
        await until(lambda: home.counts["bytes"] == 1)
        left = bench.addresses[bench.fakes.index(other)]
        bench.pool._set_addresses((left,))
        await asyncio.wait_for(encoding.wait(), 5)
        assert encoding.refs[0].encoder_instance_id == other.instance.id
        assert encoding.refs[0].lease_id
        await encoding.close()
