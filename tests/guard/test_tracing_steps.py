"""What tracing costs: nothing per token, and next to nothing when it is off.

The numbers are exact: who adds a call changes a number here, and says why.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import Counter
from typing import Any

import pytest
from support.builders.frontend import chat_request, frontend_bench, ids
from support.counting import python_calls
from support.drivers.engine_service import Session, a_message, an_engine
from support.fakes.collector import Collector, collecting
from support.fakes.engine import says
from support.fakes.frontend import FakeFrontend
from support.fakes.gateway import CHAT, client_of, gateway_client, gateway_server, until_connected
from support.fakes.spans import KeptSpans
from support.fakes.stepped_frontend import SteppedFrontend
from support.waiting import until
from triptych.v1 import generation_pb2
from triptych_common.telemetry import tracing
from triptych_common.telemetry.tracing import Tracer
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

NUM_CALLS, NUM_STEPS = 16, 5
#: All code that only serves traces.
MODULES = (
    "triptych_common.telemetry.tracing",
    "triptych_common.telemetry.trace_context",
    "triptych_common.telemetry.export",
    "triptych_common.rpc.tracing",
    "triptych_gateway.tracing",
    "triptych_frontend.generation.call_trace",
    "triptych_encoder.rpc.item_trace",
    "triptych_engine.rpc.sequence_trace",
    "opentelemetry.sdk",
    "opentelemetry.exporter",
)
#: Calls of their Python functions for one chat without tracing, of a client without a trace; at most so many of built-in ones.
#: Gateway: into the request and out of it, the context for the frontend, three notes that nobody takes.
#: Frontend: the caller's place, its own, the context for the engine, and that nothing is recorded.
GATEWAY_OFF, FRONTEND_OFF = (9, 8), (7, 3)
TRACED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def main_thread_calls() -> Any:
    """Counts on this thread: the exporter's thread is not a part of a step."""
    return python_calls(*MODULES)


def assert_no_token_counts(calls: Counter[str]) -> None:
    """Assert that none of the steps' tokens took a call. Calls between services, e.g. of a health watch, are none of a token."""
    assert max(calls.values(), default=0) < NUM_CALLS, calls


async def test_a_token_of_a_traced_stream_costs_the_gateway_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    frontend, body = SteppedFrontend(), json.dumps(CHAT | {"stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    async with (
        collecting(monkeypatch) as collector,
        gateway_server(frontend, otlp_traces_endpoint=collector.endpoint) as place,
    ):
        streams = [await asyncio.open_connection(*place) for _ in range(NUM_CALLS)]
        for _, writer in streams:
            writer.write(head + body)
        await until(lambda: len(frontend.live) == NUM_CALLS)

        async def step() -> None:
            frontend.say(' "token"')
            async with asyncio.timeout(10):
                for reader, _ in streams:
                    await reader.readuntil(b"\n\n\r\n")

        await step()  # the first event is noted
        with main_thread_calls() as calls:
            for _ in range(NUM_STEPS):
                await step()
        assert_no_token_counts(calls)
        frontend.finish()
        for reader, writer in streams:
            await reader.readuntil(b"0\r\n\r\n")
            writer.close()
        await until(lambda: len(collector.spans) == NUM_CALLS)


async def test_a_token_of_a_traced_call_costs_the_frontend_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        collecting(monkeypatch) as collector,
        frontend_bench(says(ids("Hello there, how are you?" * 3)), otlp_traces_endpoint=collector.endpoint) as bench,
    ):
        stream = bench.generation.Session()
        assert (await stream.read()).instance.id
        await bench.engine.pause()
        calls = [generation_pb2.GenerationCall(number=number, chat=chat_request()) for number in range(NUM_CALLS)]
        await stream.write(generation_pb2.GenerationServiceSessionRequest(start=calls))
        await bench.engine.until(lambda: len(bench.engine.requests) == NUM_CALLS)
        await preprocessed(collector)
        with main_thread_calls() as counted:
            for _ in range(NUM_STEPS):
                await bench.engine.pause(after_steps=1)
                assert len((await stream.read()).responses) == NUM_CALLS
        assert_no_token_counts(counted)
        stream.cancel()


async def preprocessed(collector: Collector) -> None:
    """Wait for the spans that are sent before the first token."""
    await until(lambda: sum(one.name == "preprocess" for one in collector.spans) == NUM_CALLS)


async def test_a_step_of_traced_sequences_costs_the_engine_nothing() -> None:
    kept = KeptSpans()
    async with an_engine(Tracer(kept)) as engine:
        engine.runner.gate = threading.Semaphore(0)
        session = Session(engine.stub)
        await session.open()
        requests = [a_message(f"r{number}", prompt=[number + 1], max_tokens=30) for number in range(8)]
        for request in requests:
            request.context.traceparent = TRACED
        await session.add(*requests)
        await until(lambda: engine.outbox.num_live_requests == len(requests))
        engine.runner.gate.release(2)
        await session.read()
        with main_thread_calls() as calls:
            for _ in range(NUM_STEPS):
                engine.runner.gate.release(1)
                await session.read()
        assert_no_token_counts(calls)
        assert not kept.spans
        engine.runner.gate.release(10_000)
        await session.until_ended(*(request.request_id for request in requests))
    assert sum(span.name == "sequence" for span in kept.spans) == len(requests)


async def test_a_request_without_tracing_costs_a_few_calls() -> None:
    async with gateway_client(FakeFrontend()) as client:
        with main_thread_calls() as gateway:
            (await client.post("/v1/chat/completions", json=CHAT)).raise_for_status()
    async with frontend_bench() as bench:
        stream = bench.generation.Session()
        assert (await stream.read()).instance.id
        call = generation_pb2.GenerationCall(number=1, chat=chat_request(), output_mode=generation_pb2.OUTPUT_MODE_FINAL)
        with main_thread_calls() as frontend:
            await stream.write(generation_pb2.GenerationServiceSessionRequest(start=[call]))
            assert (await stream.read()).responses
        stream.cancel()
    for calls, (functions, builtins) in ((gateway, GATEWAY_OFF), (frontend, FRONTEND_OFF)):
        # Other unary calls between the services may come meanwhile, e.g. after a health watch.
        calls = Counter({name: count for name, count in calls.items() if ":trace_in" not in name})
        in_builtins = Counter({name: count for name, count in calls.items() if " > " in name})
        assert (calls - in_builtins).total() == functions, calls - in_builtins
        assert in_builtins.total() <= builtins, in_builtins


class Forbidden:
    """A span that must not be made."""

    def __init__(self, *args: object, **options: object) -> None:
        raise AssertionError("a span was made")


@pytest.mark.parametrize("headers", [{}, {"traceparent": TRACED}])
async def test_no_span_is_made_while_tracing_is_off(headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "Span", Forbidden)
    async with frontend_bench() as bench, an_engine() as engine:
        app = create_app(GatewaySettings(frontend_addresses=(f"127.0.0.1:{bench.frontend.server.port}",)))
        async with app.router.lifespan_context(app), client_of(app) as client:
            await until_connected(app)
            body = CHAT | {"model": bench.frontend.model_info().name}
            (await client.post("/v1/chat/completions", json=body, headers=headers)).raise_for_status()
        session = Session(engine.stub)
        await session.open()
        request = a_message("r")
        request.context.traceparent = headers.get("traceparent", "")
        await session.add(request)
        await session.until_ended("r")
        session.call.cancel()


async def test_a_service_without_tracing_does_not_import_the_exporter() -> None:
    modules = "{'triptych_common.telemetry.export', 'opentelemetry.exporter'}"
    program = f"import sys, triptych_gateway.main, triptych_frontend.service; sys.exit(bool({modules} & sys.modules.keys()))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await process.wait() == 0
