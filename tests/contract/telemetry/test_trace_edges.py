"""Where traces begin and end: sampling, services that do not trace, collectors that are away, work that several requests share."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import grpc
import orjson
import pytest
import websockets
from support.builders.frontend import chat_request, frontend_bench
from support.builders.pooling import an_embedder
from support.drivers.traced_stack import traced_stack
from support.fakes.collector import collecting
from support.fakes.engine import says
from support.fakes.frontend import FakeFrontend, fails
from support.fakes.gateway import CHAT, client_of, gateway_app, gateway_client, gateway_server
from support.keys import secret_of
from support.waiting import until
from triptych.errors import ServiceUnavailableError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.telemetry import attributes as names
from triptych_common.telemetry.trace_context import parse_trace_context, trace_var
from triptych_gateway.access.keys import new_key

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SAMPLED, UNSAMPLED = f"00-{TRACE_ID}-00f067aa0ba902b7-01", f"00-{TRACE_ID}-00f067aa0ba902b7-00"
STATE = "vendor=value"


class ListeningFrontend(FakeFrontend):
    """Notes the place in a trace that unary calls came with."""

    def __init__(self) -> None:
        super().__init__()
        self.traces: list[str] = []

    async def ListModels(
        self, request: generation_pb2.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.ListModelsResponse:
        trace = trace_var.get()
        self.traces.append("" if trace is None else f"{trace.traceparent} {trace.tracestate}")
        return await super().ListModels(request, context)


async def test_a_gateway_that_does_not_trace_passes_traces_on() -> None:
    frontend = ListeningFrontend()
    async with gateway_client(frontend) as client:
        for traceparent in (SAMPLED, UNSAMPLED):
            headers = {"traceparent": traceparent, "tracestate": STATE}
            (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).raise_for_status()
            (await client.get("/v1/models", headers=headers)).raise_for_status()
        (await client.post("/v1/chat/completions", json=CHAT)).raise_for_status()
        (await client.get("/v1/models")).raise_for_status()
    contexts = [(context.traceparent, context.tracestate) for context in frontend.contexts]
    assert contexts == [(SAMPLED, STATE), (UNSAMPLED, STATE), ("", "")]
    assert frontend.traces[-3:] == [f"{SAMPLED} {STATE}", f"{UNSAMPLED} {STATE}", ""]


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", "nonsense"), ("tracestate", STATE)],
        [("traceparent", SAMPLED), ("traceparent", SAMPLED)],
        [("tracestate", STATE)],
    ],
)
async def test_invalid_headers_are_ignored(headers: list[tuple[str, str]]) -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).raise_for_status()
    assert [(context.traceparent, context.tracestate) for context in frontend.contexts] == [("", "")]


async def test_several_headers_of_tracestate_are_one_list() -> None:
    frontend = FakeFrontend()
    headers = [("traceparent", SAMPLED), ("tracestate", "a=1"), ("tracestate", "b=2")]
    async with gateway_client(frontend) as client:
        (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).raise_for_status()
    assert frontend.contexts[0].tracestate == "a=1,b=2"


async def test_a_frontend_that_does_not_trace_passes_traces_on() -> None:
    async with frontend_bench() as bench:
        await bench.generation.Chat(chat_request(), metadata=[("traceparent", SAMPLED), ("tracestate", STATE)])
        await bench.generation.Chat(chat_request())
        session = bench.generation.Session(metadata=[("traceparent", UNSAMPLED)])
        assert (await session.read()).instance.id
        for number, traceparent in enumerate((SAMPLED, "")):
            context = common_pb2.CallContext(tenant="acme", traceparent=traceparent, tracestate=STATE if traceparent else "")
            call = generation_pb2.GenerationCall(number=number, chat=chat_request(), context=context)
            await session.write(generation_pb2.GenerationServiceSessionRequest(start=[call]))
            await bench.engine.until(lambda count=number + 3: len(bench.engine.requests) == count)
        session.cancel()
        contexts = [request.context for request in bench.engine.requests]
    assert [(one.tenant, one.traceparent, one.tracestate) for one in contexts] == [
        ("", SAMPLED, STATE),
        ("", "", ""),
        ("acme", SAMPLED, STATE),
        ("acme", "", ""),  # nothing of the session's own metadata
    ]


@pytest.mark.usefixtures("short_grace")
async def test_a_call_that_gets_to_no_engine_has_all_its_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    async with collecting(monkeypatch) as collector, frontend_bench(otlp_traces_endpoint=collector.endpoint) as bench:
        await bench.engine.go_down()
        await bench.until_ready(False)
        with pytest.raises(grpc.aio.AioRpcError, match="no engine can take this request"):
            await bench.generation.Chat(chat_request())
        await until(lambda: len(collector.spans) == 3)
        spans = {one.name.split()[0]: one for one in collector.spans}
    assert spans.keys() == {"chat", "preprocess", "engine"}
    assert spans["engine"].span.parent_span_id == spans["chat"].span.span_id
    assert {spans[name].attributes[names.ERROR_TYPE] for name in ("chat", "engine")} == {"SERVICE_UNAVAILABLE"}


async def test_the_requests_of_a_beam_search_are_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    options = generation_pb2.GenerationOptions(beam_search=generation_pb2.BeamSearch(width=2))
    async with (
        collecting(monkeypatch) as collector,
        frontend_bench(says([]), otlp_traces_endpoint=collector.endpoint) as bench,
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="no log probabilities"):
            await bench.generation.Complete(generation_pb2.CompleteRequest(text="Once", options=options))
        (context,) = (parse_trace_context(request.context.traceparent) for request in bench.engine.requests)
        await until(lambda: "engine" in {one.name for one in collector.spans})
        spans = {one.name: one for one in collector.spans}
    assert context is not None
    assert not context.is_sampled
    assert spans["engine"].attributes[names.ERROR_TYPE] == "INTERNAL"
    assert f"{context.trace_id:032x}" == spans["engine"].span.trace_id.hex()


@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_the_ratio_is_for_requests_without_a_trace(ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = FakeFrontend()
    async with collecting(monkeypatch) as collector:
        async with gateway_client(frontend, otlp_traces_endpoint=collector.endpoint, trace_sampling_ratio=ratio) as client:
            for traceparent in (None, SAMPLED, UNSAMPLED):
                headers = {} if traceparent is None else {"traceparent": traceparent}
                (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).raise_for_status()
        # The gateway sent everything before it ended.
        parents = [one.span.parent_span_id.hex() for one in collector.spans]
    assert parents == (["", "00f067aa0ba902b7"] if ratio else ["00f067aa0ba902b7"])
    contexts = [parse_trace_context(context.traceparent) for context in frontend.contexts]
    assert [context is not None and context.is_sampled for context in contexts] == [bool(ratio), True, False]
    assert frontend.contexts[2].traceparent == UNSAMPLED
    for context in contexts[:2]:
        assert context is not None
        known = {int.from_bytes(one.span.span_id, "big") for one in collector.spans}
        assert (context.span_id in known) is context.is_sampled, "the next service's parent is the gateway's span"


async def test_a_collector_that_is_away_changes_nothing_for_clients(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    frontend = FakeFrontend()
    async with gateway_app(frontend, otlp_traces_endpoint="http://127.0.0.1:9") as app, client_of(app) as client:
        for _ in range(20):
            (await client.post("/v1/chat/completions", json=CHAT)).raise_for_status()
        tracer, start_s = app.state.gateway.tracer, time.monotonic()
    assert time.monotonic() - start_s < 5  # two seconds, and what a loaded machine needs
    await until(lambda: tracer.dropped_spans() == 20)
    warnings = [record.message for record in caplog.records if "collector" in record.message or "opentelemetry" in record.name]
    assert warnings == ["the collector of traces at http://127.0.0.1:9 takes no spans; they are dropped until it does"]


async def test_a_collector_that_refuses_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = FakeFrontend()
    async with collecting(monkeypatch) as collector:
        collector.is_away = True
        async with gateway_app(frontend, otlp_traces_endpoint=collector.endpoint) as app, client_of(app) as client:
            (await client.post("/v1/chat/completions", json=CHAT)).raise_for_status()
            await until(lambda: app.state.gateway.tracer.dropped_spans() == 1)
            collector.is_away = False
            (await client.post("/v1/chat/completions", json=CHAT)).raise_for_status()
            await until(lambda: len(collector.spans) == 1)
            assert app.state.gateway.tracer.dropped_spans() == 1


async def test_a_stream_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = FakeFrontend()
    frontend.script = fails(ServiceUnavailableError("gone"), after=1)
    async with collecting(monkeypatch) as collector:
        async with gateway_client(frontend, otlp_traces_endpoint=collector.endpoint) as client:
            answer = await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
            assert "service_unavailable" in answer.text
        (one,) = collector.spans
    assert (one.attributes[names.ERROR_TYPE], one.is_failure) == ("service_unavailable", True)
    assert one.attributes[names.HTTP_RESPONSE_STATUS_CODE] == 200


async def test_of_what_clients_write_a_span_keeps_little(monkeypatch: pytest.MonkeyPatch) -> None:
    async with collecting(monkeypatch) as collector:
        async with gateway_client(FakeFrontend(), otlp_traces_endpoint=collector.endpoint) as client:
            await client.post("/v1/chat/completions", json=CHAT | {"model": "m" * 1_000_000})
            await client.get("/" + "p" * 30_000)
        assert max(one.span.ByteSize() for one in collector.spans) < 1500


async def test_a_key_in_the_wrong_place_is_in_no_span_and_no_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    _, key, _ = new_key()
    async with collecting(monkeypatch) as collector:
        async with gateway_client(FakeFrontend(), otlp_traces_endpoint=collector.endpoint) as client:
            await client.post("/v1/chat/completions", json=CHAT | {"model": key})
            await client.post("/v1/responses", json={"model": key, "input": "Hi", "background": True})
            await client.get(f"/v1/models/{key}")
            await client.get("/" + "p" * 30_000)
        assert len(collector.spans) == 4
        assert not any(secret_of(key).encode() in one.span.SerializeToString() for one in collector.spans)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("triptych")]
    assert not any(secret_of(key) in line for line in lines)
    assert max(map(len, lines)) < 400


async def test_each_turn_of_a_websocket_is_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = FakeFrontend()
    async with (
        collecting(monkeypatch) as collector,
        gateway_server(frontend, otlp_traces_endpoint=collector.endpoint) as (host, port),
        websockets.connect(
            f"ws://{host}:{port}/v1/responses", additional_headers={"traceparent": SAMPLED}, proxy=None
        ) as connection,
    ):
        for model in (CHAT["model"], CHAT["model"], "other"):
            await connection.send(orjson.dumps({"type": "response.create", "model": model, "input": "Hi"}).decode())
            while orjson.loads(await connection.recv())["type"] not in ("response.completed", "error", "response.failed"):
                pass
        await until(lambda: len(collector.spans) == 3)
    first, second, failed = collector.spans
    assert {one.name for one in collector.spans} == {"WEBSOCKET /v1/responses"}
    assert {one.span.parent_span_id.hex() for one in collector.spans} == {"00f067aa0ba902b7"}
    assert len({one.attributes[names.REQUEST_ID] for one in collector.spans}) == 3
    assert first.attributes[names.GEN_AI_USAGE_OUTPUT_TOKENS] == second.attributes[names.GEN_AI_USAGE_OUTPUT_TOKENS] == 3
    assert failed.attributes[names.ERROR_TYPE] == "model_not_found"


async def test_embeddings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = an_embedder(tmp_path / "embedder", "bert")
    async with traced_stack(monkeypatch, path) as stack:
        body = {"model": stack.model, "input": ["w0 w1", "w2"]}
        answer = await stack.client.post("/v1/embeddings", json=body, headers={"x-request-id": "e"})
        assert answer.raise_for_status().json()["usage"]["prompt_tokens"] == 7
        expected = """
gateway: POST /v1/embeddings
  frontend: embeddings embedder
    frontend: engine
      engine: embed
"""
        spans = await stack.collector.until_tree("e", expected)
    for one in ("gateway: POST /v1/embeddings", "frontend: embeddings embedder", "engine: embed"):
        assert spans[one].attributes[names.GEN_AI_USAGE_INPUT_TOKENS] == 7
    assert spans["engine: embed"].attributes[names.NUM_INPUTS] == 2
