"""Each metric of the engine that docs/metrics.md names moves as it says."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from pathlib import Path

import grpc
import pytest
import zmq
import zmq.asyncio
from support import media_stack
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.drivers.engine_media import a_media_engine, holding
from support.drivers.engine_service import NUM_BLOCKS, Served, a_message, an_engine
from support.fakes.collector import refusing
from support.metrics import Case, Run, check, documented, gauges, missing, run_once, scraped, several, snapshot
from support.waiting import until
from triptych.v1 import control_pb2, control_pb2_grpc, engine_pb2, engine_pb2_grpc
from triptych_common import __version__
from triptych_common.rpc.channels import open_channel
from triptych_engine.kv_events.publisher import KVEventPublisher
from triptych_engine.rpc.vllm.kv_events import KvEventRelay
from triptych_engine.scheduling.cache.block_pool import AllBlocksCleared

PREFIX = "triptych_engine"
ALIAS = {"model_name": "fake", "engine": "0"}


async def generate(stub: engine_pb2_grpc.EngineServiceStub, message: engine_pb2.EngineRequest) -> engine_pb2.SequenceOutput:
    outputs = [one.output async for one in stub.Generate(engine_pb2.GenerateRequest(request=message))]
    return outputs[-1]


async def the_same_prompt_twice() -> Run:
    """Nine prompt tokens, of which the second time two blocks of four are cached; eight output tokens."""
    async with an_engine() as engine:
        before = snapshot(engine.metrics.families())
        for name in ("first", "again"):
            await generate(engine.stub, a_message(name, [*range(1, 10)]))
        await engine.core_turn()
        return Run([before, snapshot(engine.metrics.families())])


async def three_requests_for_two_seats() -> Run:
    async with an_engine(max_num_seqs=2) as engine:
        snapshots = [snapshot(engine.metrics.families())]
        engine.runner.gate = threading.Semaphore(0)
        calls = [asyncio.create_task(generate(engine.stub, a_message(f"r{number}"))) for number in range(3)]
        await until(lambda: engine.outbox.num_live_requests == 3)
        load = engine.core.load
        while (load.num_running, load.num_waiting) != (2, 1):
            engine.runner.gate.release()
            await until(lambda seen=load: engine.core.load is not seen)
            load = engine.core.load
        snapshots.append(snapshot(engine.metrics.families()))
        engine.runner.gate.release(1000)
        await asyncio.gather(*calls)
        await engine.until_idle()
        return Run([*snapshots, snapshot(engine.metrics.families())])


async def more_tokens_than_blocks() -> Run:
    """Four sequences of 103 tokens need 104 blocks of four, and there are 64."""
    async with an_engine() as engine:
        before = snapshot(engine.metrics.families())
        engine.runner.gate = threading.Semaphore(0)
        messages = [a_message(f"r{number}", [number, 1, 2], max_tokens=100) for number in range(4)]
        calls = [asyncio.create_task(generate(engine.stub, message)) for message in messages]
        # Or the first might end before the last comes, and all would have room.
        await until(lambda: engine.outbox.num_live_requests == 4)
        engine.runner.gate.release(1000)
        lasts = await asyncio.gather(*calls)
        await engine.core_turn()
        num_preemptions = sum(last.timings.num_preemptions for last in lasts)
        return Run([before, snapshot(engine.metrics.families())], {"preemptions": num_preemptions})


async def a_lost_worker() -> Run:
    async with an_engine() as engine:
        before = snapshot(engine.metrics.families())
        engine.runner.lose_in_steps = 1
        await generate(engine.stub, a_message("r"))
        return Run([before, snapshot(engine.metrics.families())])


async def four_drafts_per_step() -> Run:
    """Nine tokens: one with the prompt; then none of four drafts is right, all of four, and the only one that is left."""
    async with an_engine(num_drafts=4) as engine:
        before = snapshot(engine.metrics.families())
        counts = iter([1, 1, 5, 2])
        engine.runner.num_new_tokens = lambda most: next(counts)
        await generate(engine.stub, a_message("r", max_tokens=9))
        await engine.core_turn()
        return Run([before, snapshot(engine.metrics.families())])


async def bad_ends() -> Run:
    """A request that fails in a step, one that is refused, and one that is aborted."""
    async with an_engine() as engine:
        before = snapshot(engine.metrics.families())
        engine.runner.fail_requests = {"fails"}
        for bad in (a_message("fails"), a_message("refused", [10**6])):
            with contextlib.suppress(grpc.aio.AioRpcError):
                await generate(engine.stub, bad)
        await abort(engine)
        return Run([before, snapshot(engine.metrics.families())])


async def abort(engine: Served) -> None:
    engine.runner.gate = threading.Semaphore(0)
    call = asyncio.create_task(generate(engine.stub, a_message("aborted")))
    await until(lambda: engine.runner.is_held)
    call.cancel()
    await engine.until_a_command_waits()
    engine.runner.gate.release(1000)
    await engine.until_idle()


async def one_image() -> Run:
    """Six embeddings of four bytes: ordered, kept while their request decodes, unused, dropped. Then an item that is nowhere."""
    async with a_media_engine() as engine:
        snapshots = [snapshot(engine.metrics.families())]
        holding(engine.encoder, b"cat")
        engine.encoder.fetch_gate, engine.runner.gate = asyncio.Event(), threading.Semaphore(0)
        call = asyncio.create_task(engine.generate(engine.message("a", [1, (b"cat", (6,)), 2])))
        await until(lambda: engine.encoder.counts["fetch"] == 1)
        snapshots.append(snapshot(engine.metrics.families()))
        engine.encoder.fetch_gate.set()
        cache = engine.metrics.scheduler.embeddings
        while not cache.kept_tokens:
            engine.runner.gate.release()
            await asyncio.sleep(0.001)
        snapshots.append(snapshot(engine.metrics.families()))
        engine.runner.gate.release(1000)
        await call
        await until(lambda: not cache.kept_tokens)
        snapshots.append(snapshot(engine.metrics.families()))
        await engine.failure(engine.message("b", [1, (b"dog", (6,)), 2]))
        await asyncio.wrap_future(engine.core.reset_prefix_cache())
        return Run([*snapshots, snapshot(engine.metrics.families())])


async def two_subscribers() -> Run:
    """One reads nothing of what fits, and of one more. The other asks for a replay."""
    async with an_engine(with_kv_events=True) as engine:
        before = snapshot(engine.metrics.families())
        assert KvEventRelay(engine.kv_events).subscribe(0) is not None
        with tempfile.TemporaryDirectory() as folder:
            publisher = KVEventPublisher(engine.kv_events, f"ipc://{folder}/events", f"ipc://{folder}/replay")
            for _ in range(1025):
                engine.kv_events.publish([AllBlocksCleared()])
            context = zmq.asyncio.Context()
            socket = context.socket(zmq.DEALER)
            socket.connect(f"ipc://{folder}/replay")
            await socket.send_multipart([b"", bytes(8)])
            await socket.recv_multipart()
            context.destroy(linger=0)
            await publisher.close()
        return Run([before, snapshot(engine.metrics.families())])


async def one_process() -> Run:
    """The whole service, and what Prometheus sees of it: quiet, with a request, drained, and awake again.

    No collector takes its spans.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = save_random_model(Path(folder) / "model", a_tiny_llama_config())
        async with (
            refusing() as endpoint,
            media_stack.an_engine(path, metrics_port=0, otlp_traces_endpoint=endpoint) as engine,
            open_channel(f"127.0.0.1:{engine._server.port}") as channel,
            open_channel(f"127.0.0.1:{engine._server.control_port}") as control_channel,
        ):
            stub, control = engine_pb2_grpc.EngineServiceStub(channel), control_pb2_grpc.ControlServiceStub(control_channel)
            snapshots = [await scraped(engine.metrics_port)]
            hold = threading.Event()
            assert engine._core is not None
            engine._core.call(hold.wait)
            message = a_message("r")
            message.context.traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
            call = asyncio.create_task(generate(stub, message))
            await until(lambda: engine.num_live_requests == 1)
            snapshots.append(await scraped(engine.metrics_port))
            hold.set()
            await call
            await until(lambda: engine._server.tracer.dropped_spans() > 0)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await generate(stub, a_message("refused", [10**6]))
            await control.Drain(control_pb2.DrainRequest())
            snapshots.append(await scraped(engine.metrics_port))
            await control.WakeUp(control_pb2.WakeUpRequest())
            return Run([*snapshots, await scraped(engine.metrics_port)])


def in_use(ratio: float) -> bool:
    """Two short sequences."""
    return 2 / NUM_BLOCKS <= ratio <= 8 / NUM_BLOCKS


#: Counts and sums of the same prompt twice: 16 steps, of which the first has 9 tokens and the ninth the one that is not cached.
TWICE = {
    "prompt_tokens": 18,
    "cached_tokens": 8,
    "generation_tokens": 16,
    "time_to_first_token_seconds": 2,
    "inter_token_seconds": 14,
    "request_seconds": 2,
    "queue_seconds": 2,
    "prefill_seconds": 2,
    "decode_seconds": 2,
    "step_seconds": 16,
    "batch_size": (16, 16),
    "step_tokens": (16, 9 + 7 + 1 + 7),
}
ALIASES = {
    "vllm:prompt_tokens": 18,
    "vllm:generation_tokens": 16,
    "vllm:prefix_cache_queries": 18,
    "vllm:prefix_cache_hits": 8,
    "vllm:time_to_first_token_seconds": 2,
    "vllm:inter_token_latency_seconds": 14,
    "vllm:e2e_request_latency_seconds": 2,
    "vllm:request_queue_time_seconds": 2,
    "vllm:request_prefill_time_seconds": 2,
    "vllm:request_decode_time_seconds": 2,
    "vllm:iteration_tokens_total": (16, 24),
}
CASES = [
    *several(the_same_prompt_twice, {f"{PREFIX}_{name}": change for name, change in TWICE.items()}),
    *several(the_same_prompt_twice, ALIASES, **ALIAS),
    *several(the_same_prompt_twice, {f"{PREFIX}_requests": 2}, finish_reason="length"),
    *several(the_same_prompt_twice, {"vllm:request_success": 2}, finished_reason="length", **ALIAS),
    *several(four_drafts_per_step, {f"{PREFIX}_draft_tokens": 9, f"{PREFIX}_accepted_tokens": 5}),
    *several(
        four_drafts_per_step, {"vllm:spec_decode_num_draft_tokens": 9, "vllm:spec_decode_num_accepted_tokens": 5}, **ALIAS
    ),
    *several(more_tokens_than_blocks, {f"{PREFIX}_preemptions": "preemptions"}),
    *several(more_tokens_than_blocks, {"vllm:num_preemptions": "preemptions"}, **ALIAS),
    *several(a_lost_worker, {f"{PREFIX}_worker_restarts": 1}),
    *several(bad_ends, {f"{PREFIX}_requests": 1}, finish_reason="abort"),
    *several(bad_ends, {f"{PREFIX}_requests": 1}, finish_reason="error"),
    *several(bad_ends, {f"{PREFIX}_errors": 1}, reason="INTERNAL"),
    *several(bad_ends, {f"{PREFIX}_errors": 1}, reason="INVALID_REQUEST"),
    *gauges(
        three_requests_for_two_seats,
        {
            f"{PREFIX}_running_requests": (0, 2, 0),
            f"{PREFIX}_waiting_requests": (0, 1, 0),
            f"{PREFIX}_kv_cache_usage_ratio": (0, in_use, 0),
            f"{PREFIX}_kv_cache_blocks": (NUM_BLOCKS,) * 3,
            f"{PREFIX}_kv_cache_block_tokens": (4,) * 3,
        },
    ),
    *gauges(
        three_requests_for_two_seats,
        {
            "vllm:num_requests_running": (0, 2, 0),
            "vllm:num_requests_waiting": (0, 1, 0),
            "vllm:kv_cache_usage_perc": (0, in_use, 0),
        },
        **ALIAS,
    ),
    *gauges(
        three_requests_for_two_seats,
        {"vllm:cache_config_info": (1, 1, 1)},
        block_size="4", num_gpu_blocks=str(NUM_BLOCKS), engine="0",
    ),
    *gauges(
        one_image,
        {
            f"{PREFIX}_embedding_cache_used_bytes": (0, 24, 0, 24, 0),
            f"{PREFIX}_embedding_cache_kept_bytes": (0, 0, 24, 0, 0),
            f"{PREFIX}_embedding_cache_capacity_bytes": (4000,) * 5,
        },
    ),
    *several(
        one_image,
        {f"{PREFIX}_embedding_fetch_seconds": 1, f"{PREFIX}_embedding_fetched_bytes": 24, f"{PREFIX}_embedding_fetch_failures": 1},
    ),
    *several(one_image, {f"{PREFIX}_media_items": 2}, source="encoder"),
    *several(one_image, {f"{PREFIX}_errors": 1}, reason="EMBEDDING_UNAVAILABLE"),
    *several(
        two_subscribers,
        {f"{PREFIX}_kv_event_batches": 1025, f"{PREFIX}_kv_event_batches_dropped": 1025, f"{PREFIX}_kv_event_replays": 1},
    ),
    *gauges(one_process, {f"{PREFIX}_ready": (1, 1, 0, 1), f"{PREFIX}_live_requests": (0, 1, 0, 0)}),
    *gauges(one_process, {"triptych_build_info": (1, 1, 1, 1)}, service="engine", version=__version__),
    *gauges(one_process, {"triptych_model_info": (1, 1, 1, 1)}, service="engine", model_name="model"),
    *several(one_process, {f"{PREFIX}_grpc_calls": 1}, method="Generate", code="OK"),
    *several(one_process, {f"{PREFIX}_grpc_calls": 1}, method="Generate", code="INVALID_ARGUMENT"),
    *several(one_process, {f"{PREFIX}_grpc_calls": 1}, method="Drain", code="OK"),
    *several(one_process, {f"{PREFIX}_spans_dropped": lambda number: number >= 1}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
async def test_it_moves(case: Case) -> None:
    await check(case, documented("engine")[case.metric])


async def test_each_documented_metric_has_a_case_and_no_other_is_exported() -> None:
    assert not missing(CASES, "engine")
    exported = (await run_once(one_process)).snapshots[-1]
    assert {name for name in exported.kinds if not name.startswith(("process_", "python_"))} == documented("engine").keys()


async def test_a_sequence_that_waits_in_an_idle_engine_is_counted() -> None:
    async with a_media_engine() as engine:
        holding(engine.encoder, b"cat")
        engine.encoder.fetch_gate = asyncio.Event()
        call = asyncio.create_task(engine.generate(engine.message("a", [(b"cat", (6,)), 1])))
        await until(lambda: engine.encoder.counts["fetch"] == 1)
        waiting = snapshot(engine.metrics.families())
        engine.encoder.fetch_gate.set()
        await call
    assert waiting.value(f"{PREFIX}_waiting_requests", {}) == 1
