"""Each metric of the encoder that docs/metrics.md names moves as it says."""

from __future__ import annotations

import asyncio

import grpc
import pytest
import support.builders.media_files as media
from support.drivers.encoder import an_encoder
from support.drivers.encoder_of_fakes import BYTES_PER_TOKEN, BrokenStore, encoder_of_fakes
from support.fakes.collector import refusing
from support.metrics import Case, Run, check, documented, gauges, missing, run_once, scraped, several, snapshot
from support.waiting import until
from triptych.v1 import control_pb2, control_pb2_grpc, encoder_pb2
from triptych_common import __version__
from triptych_common.rpc.channels import open_channel
from triptych_encoder.metrics import families

PREFIX = "triptych_encoder"
FILE = b"seven b"
MODEL = media.checkpoint("llava_siglip")
SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
NUM_BYTES = len(FILE) * BYTES_PER_TOKEN


async def two_callers_then_a_third() -> Run:
    """An item is encoded for two callers at once, found by a third, fetched, released and evicted."""
    async with encoder_of_fakes(gated=True) as served:
        snapshots = [snapshot(families(served.pipeline))]
        calls = [asyncio.create_task(served.client.encode(served.item(FILE), lease_s=600)) for _ in range(2)]
        await until(lambda: served.pipeline.counters.num_joined == 1)
        snapshots.append(snapshot(families(served.pipeline)))
        assert served.tower.gate is not None
        served.tower.gate.release()
        results = [result for [result] in await asyncio.gather(*calls)]
        results += await served.client.encode(served.item(FILE))
        key = results[0].key
        await served.client.fetch(key)
        snapshots.append(snapshot(families(served.pipeline)))
        await served.client.stub.Release(encoder_pb2.ReleaseRequest(lease_ids=[result.lease_id for result in results]))
        snapshots.append(snapshot(families(served.pipeline)))
        await served.client.stub.Evict(encoder_pb2.EvictRequest(keys=[key]))
        return Run([*snapshots, snapshot(families(served.pipeline))])


async def one_item_behind_another() -> Run:
    """The second waits for a tenth of a second."""
    async with encoder_of_fakes(gated=True) as served:
        before = snapshot(families(served.pipeline))
        calls = [asyncio.create_task(served.client.encode(served.item(b"first")))]
        await until(lambda: served.tower.num_waiting == 1)
        calls.append(asyncio.create_task(served.client.encode(served.item(b"second"))))
        await until(lambda: served.device_loop.queue_length == 1)
        await asyncio.sleep(0.1)
        assert served.tower.gate is not None
        served.tower.gate.release(2)
        await asyncio.gather(*calls)
        return Run([before, snapshot(families(served.pipeline))])


async def bad_items() -> Run:
    """A file that cannot be read; one that is not known and must be sent, which is no error; and a key that is nowhere."""
    async with encoder_of_fakes() as served:
        before = snapshot(families(served.pipeline))
        unknown = served.item(b"unknown", with_data=False)
        await served.client.encode(served.item(b"bad one"), unknown)
        with pytest.raises(LookupError, match="EMBEDDING_UNAVAILABLE"):
            await served.client.fetch(b"." * 32)
        return Run([before, snapshot(families(served.pipeline))])


async def a_broken_store() -> Run:
    """It fails to read and to write."""
    async with encoder_of_fakes(store=BrokenStore()) as served:
        before = snapshot(families(served.pipeline))
        await served.client.encode(served.item(FILE))
        await until(lambda: served.pipeline.store is not None and served.pipeline.store.num_failures == 2)
        return Run([before, snapshot(families(served.pipeline))])


async def one_process() -> Run:
    """The whole service, and what Prometheus sees of it: quiet, with an item, drained, and awake again.

    No collector takes its spans.
    """
    async with (
        refusing() as endpoint,
        an_encoder(MODEL, metrics_port=0, otlp_traces_endpoint=endpoint) as encoder,
        open_channel(f"127.0.0.1:{encoder.service.control_port}") as channel,
    ):
        service, control = encoder.service, control_pb2_grpc.ControlServiceStub(channel)
        snapshots = [await scraped(service.metrics_port)]
        hold = asyncio.Event()
        loop = asyncio.get_running_loop()
        service._device_loop.call(lambda: asyncio.run_coroutine_threadsafe(hold.wait(), loop).result())
        call = asyncio.create_task(encoder.encode(encoder.item("image", media.image()), metadata=[("traceparent", SAMPLED)]))
        await until(lambda: service.num_live_requests == 1)
        snapshots.append(await scraped(service.metrics_port))
        hold.set()
        await call
        await until(lambda: service._server.tracer.dropped_spans() > 0)
        await control.Drain(control_pb2.DrainRequest())
        snapshots.append(await scraped(service.metrics_port))
        with pytest.raises(grpc.aio.AioRpcError):
            await encoder.encode(encoder.item("image", media.image()))
        await control.WakeUp(control_pb2.WakeUpRequest())
        return Run([*snapshots, await scraped(service.metrics_port)])


CASES = [
    *several(two_callers_then_a_third, {f"{PREFIX}_items": 1}, tier="miss"),
    *several(two_callers_then_a_third, {f"{PREFIX}_items": 1}, tier="joined"),
    *several(two_callers_then_a_third, {f"{PREFIX}_items": 1}, tier="local"),
    *several(
        two_callers_then_a_third,
        {
            # As the fakes say.
            f"{PREFIX}_decode_seconds": (1, 0.01),
            f"{PREFIX}_preprocess_seconds": (1, 0.02),
            f"{PREFIX}_encode_seconds": 1,
        },
        modality="image",
    ),
    *several(
        two_callers_then_a_third,
        {
            f"{PREFIX}_batch_size": (1, 1),
            f"{PREFIX}_batch_embeddings": (1, len(FILE)),
            f"{PREFIX}_fetch_seconds": 1,
            f"{PREFIX}_uploaded_bytes": 3 * len(FILE),
            f"{PREFIX}_fetched_bytes": NUM_BYTES,
            f"{PREFIX}_evictions": 1,
        },
    ),
    *gauges(
        two_callers_then_a_third,
        {
            f"{PREFIX}_queue_length": (0, 1, 0, 0, 0),
            f"{PREFIX}_leases": (0, 0, 3, 0, 0),
            f"{PREFIX}_cache_items": (0, 0, 1, 1, 0),
            f"{PREFIX}_cache_used_bytes": (0, 0, NUM_BYTES, NUM_BYTES, 0),
            f"{PREFIX}_cache_leased_bytes": (0, 0, NUM_BYTES, 0, 0),
            f"{PREFIX}_cache_capacity_bytes": (1 << 20,) * 5,
        },
    ),
    # The fake preprocessor pretends that 0.03 s of them were its own.
    *several(one_item_behind_another, {f"{PREFIX}_queue_seconds": (2, lambda total: total > 0.05)}, modality="image"),
    *several(bad_items, {f"{PREFIX}_failed_items": 1}),
    *several(bad_items, {f"{PREFIX}_errors": 1}, reason="INVALID_REQUEST"),
    *several(bad_items, {f"{PREFIX}_errors": 1}, reason="EMBEDDING_UNAVAILABLE"),
    *several(bad_items, {f"{PREFIX}_errors": 0}, reason="MEDIA_NOT_FOUND"),
    *several(a_broken_store, {f"{PREFIX}_store_failures": 2}),
    *gauges(one_process, {f"{PREFIX}_ready": (1, 1, 0, 1), f"{PREFIX}_live_requests": (0, 1, 0, 0)}),
    *gauges(one_process, {"triptych_build_info": (1, 1, 1, 1)}, service="encoder", version=__version__),
    *gauges(one_process, {"triptych_model_info": (1,) * 4}, service="encoder", model_name=MODEL.name),
    *several(one_process, {f"{PREFIX}_grpc_calls": 1}, method="Encode", code="OK"),
    *several(one_process, {f"{PREFIX}_grpc_calls": 1}, method="Encode", code="UNAVAILABLE"),
    *several(one_process, {f"{PREFIX}_spans_dropped": lambda number: number >= 1}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
async def test_it_moves(case: Case) -> None:
    await check(case, documented("encoder")[case.metric])


async def test_each_documented_metric_has_a_case_and_no_other_is_exported() -> None:
    assert not missing(CASES, "encoder")
    exported = (await run_once(one_process)).snapshots[-1]
    assert {name for name in exported.kinds if not name.startswith(("process_", "python_"))} == documented("encoder").keys()
