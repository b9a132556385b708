"""Each metric of the frontend that docs/metrics.md names moves as it says."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.builders.frontend import Bench, chat_request, frontend_bench, ids
from support.builders.pooling import an_embedder
from support.builders.tokenizer import small_model_dir
from support.drivers.media_frontend import IMAGE, OTHER, PICTURE, Item, media_bench
from support.fakes.collector import refusing
from support.fakes.engine import fails, says
from support.metrics import Case, Run, Snapshot, check, documented, gauges, missing, scraped, several
from support.waiting import until
from triptych.errors import QueueFullError
from triptych.v1 import generation_pb2
from triptych_common import __version__
from triptych_common.model.pooling import served_model
from triptych_common.rpc.status import to_request_error

PREFIX = "triptych_frontend"
WORDS = ids("Hello there")


async def seen(bench: Bench) -> Snapshot:
    return await scraped(bench.frontend.server.metrics_port)


async def collect(call: Any) -> list[Any]:
    return [response async for response in call]


async def a_chat_and_an_engine_that_leaves() -> Run:
    """Quiet, with a chat, after it, without the engine, and with it again."""
    script = says(WORDS, cached_tokens=2)
    async with frontend_bench(script, metrics_port=0) as bench:
        snapshots = [await seen(bench)]
        await bench.engine.pause(after_steps=2)
        call = asyncio.create_task(collect(bench.chat(chat_request())))
        await until(lambda: bench.frontend.num_live_requests == 1)
        snapshots.append(await seen(bench))
        await bench.engine.resume()
        usage = (await call)[-1].usage
        await until(lambda: not bench.frontend.num_live_requests)
        snapshots.append(await seen(bench))
        await bench.engine.go_down()
        await bench.until_ready(False)
        snapshots.append(await seen(bench))
        await bench.engine.come_back()
        await bench.until_ready()
        facts = {"prompt": usage.prompt_tokens, "completion": usage.completion_tokens, "gaps": len(WORDS) - 1}
        return Run([*snapshots, await seen(bench)], facts)


async def calls_with_bad_ends() -> Run:
    """A request that is wrong, one for which the engine has no room, and one whose client leaves."""
    async with frontend_bench(metrics_port=0) as bench:
        before = await seen(bench)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await bench.generation.Complete(generation_pb2.CompleteRequest())
        bench.engine.script = fails(to_request_error(QueueFullError("full")))
        with contextlib.suppress(grpc.aio.AioRpcError):
            await bench.generation.Chat(chat_request())
        bench.engine.script = says(WORDS)
        await bench.engine.pause(after_steps=1)
        call = bench.chat(chat_request())
        await call.read()
        call.cancel()
        await until(lambda: not bench.frontend.num_live_requests)
        return Run([before, await seen(bench)])


async def a_chat_whose_engine_is_lost() -> Run:
    async with frontend_bench(says(WORDS), metrics_port=0) as bench:
        before = await seen(bench)
        await bench.engine.pause(after_steps=1)
        call = asyncio.create_task(collect(bench.chat(chat_request())))
        await bench.engine.until(lambda: bool(bench.engine.live))
        await bench.engine.go_down()
        await bench.engine.until(lambda: not bench.engine.live)
        bench.engine.instance.id = "restarted"
        await bench.engine.come_back()
        await bench.engine.resume()
        await call
        return Run([before, await seen(bench)])


async def vectors() -> Run:
    with tempfile.TemporaryDirectory() as folder:
        model = an_embedder(Path(folder), "bert")
        info, _ = served_model(model, model.name, None, "auto")
        async with frontend_bench(model=model, engine_model=info, metrics_port=0) as bench:
            before = await seen(bench)
            answer = await bench.generation.Embed(generation_pb2.EmbedRequest(inputs=[generation_pb2.EmbedInput(text="w0 w1")]))
            return Run([before, await seen(bench)], {"prompt": answer.usage.prompt_tokens})


async def pictures() -> Run:
    """While a picture is encoded, after its embedding was lost and made again, without the encoder, and with it again."""
    async with media_bench(metrics_port=0) as bench:
        snapshots = [await seen(bench.bench)]
        bench.encoder.num_lost_before_fetch, bench.encoder.gate = 1, asyncio.Event()
        call = asyncio.create_task(bench.chat(PICTURE, "What is this?"))
        await until(lambda: bench.encoder.counts["bytes"] == 1)
        snapshots.append(await seen(bench.bench))
        bench.encoder.gate.set()
        await call
        await bench.until_nothing_is_left()
        snapshots.append(await seen(bench.bench))
        for ready in (False, True):
            await bench.encoder.health.set_ready(ready)
            await until(lambda ready=ready: bool(bench.bench.frontend._encoders.ready) == ready)
            snapshots.append(await seen(bench.bench))
        return Run(snapshots)


async def pictures_by_address_and_name() -> Run:
    """A data: address, an address that is not allowed, and a name that gets another picture."""
    async with media_bench(metrics_port=0) as bench:
        before = await seen(bench.bench)
        await bench.chat(Item(modality=IMAGE, url=f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"))
        await bench.error(Item(modality=IMAGE, url="gopher://here"))
        for content in (PICTURE, OTHER):
            await bench.chat(Item(modality=IMAGE, data=content, uuid="name"))
        await bench.until_nothing_is_left()
        return Run([before, await seen(bench.bench)])


async def a_chat_whose_spans_nobody_takes() -> Run:
    async with refusing() as endpoint, frontend_bench(metrics_port=0, otlp_traces_endpoint=endpoint) as bench:
        before = await seen(bench)
        await collect(bench.chat(chat_request()))
        await until(lambda: bench.frontend.server.tracer.dropped_spans() == 3)  # the chat, its preprocessing, its engine
        return Run([before, await seen(bench)])


CASES = [
    *several(a_chat_and_an_engine_that_leaves, {f"{PREFIX}_calls": 1}, task="chat", outcome="length"),
    *several(
        a_chat_and_an_engine_that_leaves,
        {
            f"{PREFIX}_call_seconds": 1,
            f"{PREFIX}_time_to_first_token_seconds": 1,
            f"{PREFIX}_inter_token_seconds": "gaps",
            f"{PREFIX}_queue_seconds": (1, 0.125),  # as the fake engine says
            f"{PREFIX}_preprocess_seconds": 1,
            f"{PREFIX}_prompt_tokens": "prompt",
            f"{PREFIX}_cached_tokens": 2,
            f"{PREFIX}_completion_tokens": "completion",
        },
        task="chat",
    ),
    *gauges(
        a_chat_and_an_engine_that_leaves,
        {
            f"{PREFIX}_ready": (1, 1, 1, 0, 1),
            f"{PREFIX}_live_requests": (0, 1, 0, 0, 0),
            f"{PREFIX}_engines_connected": (1, 1, 1, 0, 1),
        },
    ),
    *gauges(a_chat_and_an_engine_that_leaves, {"triptych_build_info": (1,) * 5}, service="frontend", version=__version__),
    *gauges(
        a_chat_and_an_engine_that_leaves, {"triptych_model_info": (1,) * 5}, service="frontend", model_name=small_model_dir().name
    ),
    *several(a_chat_and_an_engine_that_leaves, {f"{PREFIX}_grpc_calls": 1}, method="ChatStream", code="OK"),
    *several(calls_with_bad_ends, {f"{PREFIX}_calls": 1}, task="complete", outcome="INVALID_REQUEST"),
    *several(calls_with_bad_ends, {f"{PREFIX}_calls": 1}, task="chat", outcome="QUEUE_FULL"),
    *several(calls_with_bad_ends, {f"{PREFIX}_calls": 1}, task="chat", outcome="cancelled"),
    *several(calls_with_bad_ends, {f"{PREFIX}_call_seconds": 2}, task="chat"),
    *several(calls_with_bad_ends, {f"{PREFIX}_grpc_calls": 1}, method="Complete", code="INVALID_ARGUMENT"),
    *several(calls_with_bad_ends, {f"{PREFIX}_grpc_calls": 1}, method="ChatStream", code="CANCELLED"),
    *several(a_chat_whose_engine_is_lost, {f"{PREFIX}_moved_sequences": 1}, cause="lost"),
    *several(vectors, {f"{PREFIX}_calls": 1}, task="embed", outcome="ok"),
    *several(
        vectors, {f"{PREFIX}_call_seconds": 1, f"{PREFIX}_preprocess_seconds": 1, f"{PREFIX}_prompt_tokens": "prompt"}, task="embed"
    ),
    *several(pictures, {f"{PREFIX}_media_items": 2, f"{PREFIX}_media_encode_seconds": 2}, tier="miss"),
    *several(pictures, {f"{PREFIX}_media_uploads": 2}),
    *several(pictures, {f"{PREFIX}_media_fallbacks": 1}, step="again"),
    *several(pictures, {f"{PREFIX}_media_fallbacks": 1}, step="resubmitted"),
    *gauges(
        pictures,
        {f"{PREFIX}_media_live_bytes": (0, len(PICTURE), 0, 0, 0), f"{PREFIX}_encoders_connected": (1, 1, 1, 0, 1)},
    ),
    *several(pictures_by_address_and_name, {f"{PREFIX}_media_fetch_seconds": 1}, scheme="data"),
    *several(pictures_by_address_and_name, {f"{PREFIX}_media_fetch_failures": 1}, scheme="other"),
    *several(pictures_by_address_and_name, {f"{PREFIX}_media_uuid_corrections": 1}),
    *several(a_chat_whose_spans_nobody_takes, {f"{PREFIX}_spans_dropped": 3}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
async def test_it_moves(case: Case) -> None:
    await check(case, documented("frontend")[case.metric])


async def test_each_documented_metric_has_a_case_and_no_other_is_exported() -> None:
    assert not missing(CASES, "frontend")
    async with frontend_bench(metrics_port=0) as bench:
        exported = await seen(bench)
    assert {name for name in exported.kinds if not name.startswith(("process_", "python_"))} == documented("frontend").keys()
    assert exported.values[f"{PREFIX}_spans_dropped_total", frozenset()] == 0, "tracing is off"


@pytest.mark.usefixtures("short_grace")
async def test_a_call_that_gets_to_no_engine_has_used_nothing() -> None:
    async with frontend_bench(metrics_port=0) as bench:
        await bench.engine.go_down()
        await bench.until_ready(False)
        with pytest.raises(grpc.aio.AioRpcError):
            await bench.generation.Chat(chat_request())
        after = await seen(bench)
    assert after.value(f"{PREFIX}_calls_total", {"task": "chat", "outcome": "SERVICE_UNAVAILABLE"}) == 1
    assert after.value(f"{PREFIX}_preprocess_seconds_count", {"task": "chat"}) == 1
    assert after.value(f"{PREFIX}_prompt_tokens_total", {"task": "chat"}) == 0
    assert after.value(f"{PREFIX}_live_requests", {}) == 0
