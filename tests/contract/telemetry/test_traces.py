"""One tree of spans per request, from four real services to a collector."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
import pytest_asyncio
from aiohttp import web
from support.builders.frontend import chat_request
from support.builders.media_files import image
from support.drivers.traced_stack import FAMILY, TracedStack, traced_stack
from support.fakes.collector import tree
from support.waiting import until
from triptych.v1 import common_pb2, generation_pb2
from triptych_common import __version__
from triptych_common.telemetry import attributes as names

pytestmark = pytest.mark.asyncio(loop_scope="module")
TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01", "00-5bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
SEQUENCE = """
engine: sequence
  engine: decode
  engine: prefill
  engine: queue
"""
CALL = f"frontend: chat {FAMILY}"


def indented(depth: int, *blocks: str) -> str:
    lines = [line for block in blocks for line in block.strip().splitlines()]
    return "\n".join("  " * depth + line for line in lines)


def call_tree(*sequences: str, encoded: str = "", fetched: str = "") -> str:
    """What a call of the frontend looks like."""
    parts = [encoded, "frontend: engine\n" + indented(1, *sequences), fetched, "frontend: preprocess"]
    return f"{CALL}\n" + indented(1, *parts)


def chat_tree(*sequences: str, encoded: str = "", fetched: str = "") -> str:
    """What a chat through the gateway looks like."""
    return "gateway: POST /v1/chat/completions\n" + indented(1, call_tree(*sequences, encoded=encoded, fetched=fetched))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[TracedStack]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        async with traced_stack(monkeypatch) as running:
            yield running


def picture(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(data).decode()}}


async def test_a_whole_answer(stack: TracedStack) -> None:
    answer = (await stack.chat("whole")).raise_for_status().json()
    spans = await stack.collector.until_tree("whole", chat_tree(SEQUENCE))
    http = spans["gateway: POST /v1/chat/completions"]
    assert http.attributes == {
        names.REQUEST_ID: "whole",
        names.HTTP_REQUEST_METHOD: "POST",
        names.HTTP_ROUTE: "/v1/chat/completions",
        names.HTTP_RESPONSE_STATUS_CODE: 200,
        names.URL_PATH: "/v1/chat/completions",
        names.URL_SCHEME: "http",
        names.GEN_AI_PROVIDER_NAME: "triptych",
        names.GEN_AI_OPERATION_NAME: "chat",
        names.GEN_AI_REQUEST_MODEL: FAMILY,
        names.GEN_AI_RESPONSE_MODEL: FAMILY,
        names.GEN_AI_RESPONSE_FINISH_REASONS: ["length"],
        names.GEN_AI_USAGE_INPUT_TOKENS: answer["usage"]["prompt_tokens"],
        names.GEN_AI_USAGE_OUTPUT_TOKENS: answer["usage"]["completion_tokens"],
    }
    call, sequence = spans[CALL], spans["engine: sequence"]
    for one in (call, sequence):
        assert one.attributes[names.GEN_AI_USAGE_INPUT_TOKENS] == answer["usage"]["prompt_tokens"]
        assert one.attributes[names.GEN_AI_USAGE_OUTPUT_TOKENS] == answer["usage"]["completion_tokens"]
        assert one.attributes[names.GEN_AI_RESPONSE_FINISH_REASONS] == ["length"]
    assert call.attributes[names.REQUEST_ID] == "whole"
    assert sequence.attributes[names.REQUEST_ID].startswith("whole-")
    kinds = {name: one.span.kind for name, one in spans.items()}
    server, client, internal = 2, 3, 1  # of opentelemetry.proto.trace.v1.Span.SpanKind
    assert kinds == dict.fromkeys(spans, internal) | {
        "gateway: POST /v1/chat/completions": server, CALL: server, "frontend: engine": client, "engine: sequence": server,
    }  # fmt: skip
    assert not any(one.is_failure for one in spans.values())


async def test_each_service_says_which_one_it_is(stack: TracedStack) -> None:
    await stack.chat("resources", picture(image(31, 31)))
    await until(lambda: len({one.service for one in stack.collector.trace("resources")}) == 4)
    spans = stack.collector.trace("resources")
    assert {one.service for one in spans} == {"gateway", "frontend", "encoder", "engine"}
    assert {one.resource["service.version"] for one in spans} == {__version__}
    instances = {one.service: one.resource["service.instance.id"] for one in spans}
    assert len(set(instances.values())) == 4
    assert instances["frontend"] == stack.frontend.server.identity.id


async def test_a_stream(stack: TracedStack) -> None:
    lines = (await stack.chat("stream", stream=True)).raise_for_status().text
    assert lines.endswith("data: [DONE]\n\n")
    spans = await stack.collector.until_tree("stream", chat_tree(SEQUENCE))
    http = spans["gateway: POST /v1/chat/completions"]
    assert http.attributes[names.GEN_AI_REQUEST_STREAM] is True
    duration_s = (http.span.end_time_unix_nano - http.span.start_time_unix_nano) / 1e9
    assert 0 < http.attributes[names.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK] <= duration_s + 0.01


async def test_several_choices_are_several_sequences(stack: TracedStack) -> None:
    (await stack.chat("two", n=2)).raise_for_status()
    spans = await stack.collector.until_tree("two", chat_tree(SEQUENCE, SEQUENCE))
    assert spans[CALL].attributes[names.GEN_AI_REQUEST_CHOICE_COUNT] == 2
    assert spans["gateway: POST /v1/chat/completions"].attributes[names.GEN_AI_RESPONSE_FINISH_REASONS] == ["length"] * 2
    sequences = [one for one in stack.collector.trace("two") if one.name == "sequence"]
    assert sorted(one.attributes.get(names.SEQUENCE_INDEX, 0) for one in sequences) == [0, 1]


def with_fetch(sequence: str) -> str:
    return sequence.replace("engine: prefill", "engine: fetch image\n    encoder: fetch\n  engine: prefill")


ENCODED = """
frontend: encode image
  encoder: encode image
    encoder: decode
    encoder: preprocess
    encoder: queue
    encoder: tower
"""


async def test_a_picture_is_encoded_once_and_then_found(stack: TracedStack) -> None:
    (await stack.chat("picture", picture(image()))).raise_for_status()
    spans = await stack.collector.until_tree("picture", chat_tree(with_fetch(SEQUENCE), encoded=ENCODED))
    item, sequence = spans["encoder: encode image"], spans["engine: sequence"]
    assert item.attributes[names.MEDIA_TIER] == "miss"
    assert item.attributes[names.MEDIA_KEY] == spans["frontend: encode image"].attributes[names.MEDIA_KEY]
    assert item.attributes[names.REQUEST_ID] == "picture"
    assert sequence.attributes[names.MEDIA_SOURCES] == ["encoder"]
    num_bytes = spans["engine: fetch image"].attributes[names.MEDIA_NUM_BYTES]
    assert num_bytes == item.attributes[names.MEDIA_NUM_BYTES] == spans["encoder: fetch"].attributes[names.MEDIA_NUM_BYTES] > 0
    (found,) = spans["encoder: fetch"].span.events
    assert found.name == names.FOUND

    again = "frontend: encode image\n  encoder: encode image"
    (await stack.chat("again", picture(image()))).raise_for_status()
    spans = await stack.collector.until_tree("again", chat_tree(SEQUENCE, encoded=again))
    assert spans["encoder: encode image"].attributes[names.MEDIA_TIER] == "local"
    assert spans["engine: sequence"].attributes[names.MEDIA_SOURCES] in (["engine"], ["prefix_cache"])


async def test_a_picture_from_an_address_is_fetched(stack: TracedStack) -> None:
    data = image(50, 50)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=data, content_type="image/png")

    app = web.Application()
    app.router.add_get("/secret.png", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        part = {"type": "image_url", "image_url": {"url": f"http://{host}:{port}/secret.png"}}
        (await stack.chat("address", part)).raise_for_status()
    finally:
        await runner.cleanup()
    expected = chat_tree(with_fetch(SEQUENCE), encoded=ENCODED, fetched="frontend: fetch image")
    spans = await stack.collector.until_tree("address", expected)
    fetch = spans["frontend: fetch image"]
    assert fetch.attributes == {names.MEDIA_NUM_BYTES: len(data)}, "nothing of the address"


async def test_a_refused_request(stack: TracedStack) -> None:
    answer = await stack.chat("refused", max_tokens=1_000_000)
    assert answer.status_code == 400
    spans = await stack.collector.until_tree("refused", f"gateway: POST /v1/chat/completions\n  {CALL}")
    http, call = spans["gateway: POST /v1/chat/completions"], spans[CALL]
    assert http.attributes[names.ERROR_TYPE] == answer.json()["error"]["code"] == "context_length_exceeded"
    assert http.attributes[names.HTTP_RESPONSE_STATUS_CODE] == 400
    assert not http.is_failure, "the client is at fault: OpenTelemetry leaves the status of HTTP servers unset"
    assert (call.attributes[names.ERROR_TYPE], call.is_failure) == ("CONTEXT_LENGTH_EXCEEDED", True)


async def test_a_body_that_no_frontend_sees(stack: TracedStack) -> None:
    assert (await stack.chat("invalid", temperature="hot")).status_code == 400
    spans = await stack.collector.until_tree("invalid", "gateway: POST /v1/chat/completions")
    assert spans["gateway: POST /v1/chat/completions"].attributes[names.HTTP_RESPONSE_STATUS_CODE] == 400


async def test_a_picture_that_cannot_be_read(stack: TracedStack) -> None:
    answer = await stack.chat("broken", picture(b"no picture"))
    assert answer.status_code == 400
    spans = await stack.collector.until_tree("broken", f"gateway: POST /v1/chat/completions\n  {CALL}")
    assert spans[CALL].attributes[names.ERROR_TYPE] == "INVALID_REQUEST"


async def test_a_client_that_goes_away(stack: TracedStack) -> None:
    body = stack.body(stream=True, max_tokens=None)
    async with stack.client.stream("POST", "/v1/chat/completions", json=body, headers={"x-request-id": "gone"}) as response:
        await anext(response.aiter_bytes())
    spans = await stack.collector.until_tree("gone", chat_tree(SEQUENCE), is_nested=False)
    http, call, sequence = spans["gateway: POST /v1/chat/completions"], spans[CALL], spans["engine: sequence"]
    assert http.attributes[names.CANCELLED] is True
    assert call.attributes[names.CANCELLED] is True
    assert sequence.attributes[names.GEN_AI_RESPONSE_FINISH_REASONS] == ["abort"]
    assert not any(one.is_failure for one in spans.values())


def chat(**fields: Any) -> generation_pb2.ChatRequest:
    options = generation_pb2.GenerationOptions(sampling=common_pb2.SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    return chat_request(options=options, **fields)


def metadata(request_id: str, traceparent: str | None = None, tracestate: str | None = None) -> Sequence[tuple[str, str]]:
    given = {"x-request-id": request_id, "traceparent": traceparent, "tracestate": tracestate}
    return [(key, value) for key, value in given.items() if value is not None]


async def test_a_grpc_client(stack: TracedStack) -> None:
    answer = await stack.generation.Chat(chat(), metadata=metadata("direct"))
    spans = await stack.collector.until_tree("direct", call_tree(SEQUENCE))
    assert not spans[CALL].span.parent_span_id
    for stage, seconds in (
        ("frontend: preprocess", answer.timings.preprocess_s),
        ("engine: queue", answer.timings.queue_s),
        ("engine: prefill", answer.timings.prefill_s),
        ("engine: decode", answer.timings.decode_s),
    ):
        span = spans[stage].span
        duration_s = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        assert duration_s == pytest.approx(seconds, abs=1e-3), f"{stage}: the same number as in the answer"


async def test_a_grpc_client_with_a_trace_of_its_own(stack: TracedStack) -> None:
    call = stack.generation.ChatStream(
        generation_pb2.ChatStreamRequest(chat=chat()), metadata=metadata("own", SAMPLED, "vendor=value,other=2")
    )
    assert [response async for response in call]
    spans = await stack.collector.until_tree("own", call_tree(SEQUENCE))
    assert spans[CALL].span.parent_span_id.hex() == SPAN_ID
    assert {one.span.trace_id.hex() for one in spans.values()} == {TRACE_ID}
    assert {one.span.trace_state for one in spans.values()} == {"vendor=value,other=2"}


async def test_a_refused_grpc_call(stack: TracedStack) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await stack.generation.Chat(chat(model="other"), metadata=metadata("direct-refused"))
    spans = await stack.collector.until_tree("direct-refused", CALL)
    assert spans[CALL].attributes[names.ERROR_TYPE] == "MODEL_NOT_FOUND"


async def test_an_http_client_with_a_trace_of_its_own(stack: TracedStack) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01", "tracestate": "congo=t61rcWkgMzE"}
    (await stack.chat("http-own", headers=headers)).raise_for_status()
    spans = await stack.collector.until_tree("http-own", chat_tree(SEQUENCE))
    assert spans["gateway: POST /v1/chat/completions"].span.parent_span_id.hex() == "b7ad6b7169203331"
    assert {one.span.trace_id.hex() for one in spans.values()} == {trace_id}
    assert {one.span.trace_state for one in spans.values()} == {"congo=t61rcWkgMzE"}


async def test_what_the_caller_does_not_trace_is_not_traced(stack: TracedStack) -> None:
    (await stack.chat("unsampled", headers={"traceparent": UNSAMPLED})).raise_for_status()
    # What came later has arrived, so the spans of this request would have, too.
    (await stack.chat("after")).raise_for_status()
    await stack.collector.until_tree("after", chat_tree(SEQUENCE))
    assert not stack.collector.trace("unsampled")
    assert not [one for one in stack.collector.spans if one.span.trace_id.hex() == UNSAMPLED[3:35]]


async def test_probes_are_not_traced(stack: TracedStack) -> None:
    (await stack.client.get("/health", headers={"x-request-id": "probe"})).raise_for_status()
    (await stack.client.get("/v1/models", headers={"x-request-id": "listing"})).raise_for_status()
    await stack.collector.until_tree("listing", "gateway: GET /v1/models")
    assert tree(stack.collector.trace("probe")) == ""
