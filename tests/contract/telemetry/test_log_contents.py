"""No log line holds a prompt, an answer, media or a key, not at DEBUG either."""

from __future__ import annotations

import base64
import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
import websockets
from PIL import Image
from support.builders.frontend import chat_request, frontend_bench, ids
from support.drivers.traced_stack import TracedStack, traced_stack
from support.fakes.engine import says
from support.fakes.gateway import serving_http, until_connected
from support.waiting import until
from triptych.v1 import common_pb2, generation_pb2, preprocess_pb2, preprocess_pb2_grpc
from triptych_common.telemetry.attributes import GEN_AI_REQUEST_MODEL
from triptych_common.telemetry.logs import configure_logging
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

#: In everything that no log may hold.
MARK = "xyzzy"
KEY = f"key-{MARK}"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """All lines of this process, at DEBUG, as a service writes them."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: one.level for name, one in root.manager.loggerDict.items() if isinstance(one, logging.Logger)}
    configure_logging("test", "DEBUG", "json")
    lines = io.StringIO()
    (handler,) = root.handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(lines)
    yield lines
    root.handlers, root.level = handlers, level
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def check(log: io.StringIO, *further: str) -> list[dict[str, Any]]:
    text = log.getvalue()
    assert len(text.splitlines()) > 10
    for mark in (MARK, *further):
        found = [line for line in text.splitlines() if mark.lower() in line.lower()]
        assert not found, found
    return [json.loads(line) for line in text.splitlines()]


def photo() -> bytes:
    """A JPEG that says things about itself."""
    picture, file = Image.new("RGB", (40, 30), 128), io.BytesIO()
    exif = Image.Exif()
    exif[0x010E], exif[0x8298] = f"{MARK} at home", f"(c) {MARK}"  # description, copyright
    picture.save(file, "JPEG", exif=exif, comment=MARK.encode())
    return file.getvalue()


async def use_rest(stack: TracedStack) -> set[int]:
    client, statuses = stack.client, set()
    url = f"data:image/jpeg;base64,{base64.b64encode(photo()).decode()}"
    parts = [{"type": "text", "text": MARK}, {"type": "image_url", "image_url": {"url": url}, "uuid": MARK}]
    tool = {"type": "function", "function": {"name": MARK, "description": MARK, "parameters": {"type": "object"}}}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", stack.body(*parts, user=MARK, stop=[MARK])),
        ("/v1/chat/completions", stack.body(*parts, stream=True)),
        ("/v1/chat/completions", stack.body({"type": "text", "text": MARK}, tools=[tool])),
        ("/v1/chat/completions", stack.body({"type": "text", "text": MARK}, temperature=MARK)),
        ("/v1/chat/completions", stack.body({"type": "text", "text": MARK}, model=MARK)),
        ("/v1/chat/completions", stack.body({"type": "text", "text": MARK}, **{MARK: MARK})),
        ("/v1/chat/completions", stack.body({"type": "image_url", "image_url": {"url": f"http://127.0.0.1:9/{MARK}?key={MARK}"}})),
        ("/v1/chat/completions", stack.body({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{MARK}"}})),
        ("/v1/chat/completions", stack.body({"type": "image_url", "image_url": {"url": _data_url(MARK.encode() * 9)}})),
        ("/v1/completions", {"model": stack.model, "prompt": MARK, "max_tokens": 2}),
        ("/v1/completions", {"model": stack.model, "prompt": MARK * 100_000}),
        ("/v1/completions", {"model": stack.model, "prompt": MARK, "structured_outputs": {"regex": f"({MARK}"}}),
        ("/v1/messages", {"model": stack.model, "max_tokens": 2, "messages": [{"role": "user", "content": MARK}]}),
        ("/v1/responses", {"model": stack.model, "input": MARK, "max_output_tokens": 2}),
        ("/v1/responses", {"model": stack.model, "input": MARK, "background": True, "max_output_tokens": 2}),
        ("/v1/embeddings", {"model": stack.model, "input": MARK}),
        ("/api/chat", {"model": stack.model, "options": {"num_predict": 2}, "messages": [{"role": "user", "content": MARK}]}),
        ("/api/chat", {"model": stack.model, "messages": [{"role": "user", "content": MARK, "images": [MARK]}]}),
        ("/tokenize", {"model": stack.model, "prompt": MARK}),
        (f"/v1/{MARK[0]}", {"input": MARK}),
    ]
    for path, body in bodies:
        statuses.add((await client.post(path, json=body)).status_code)
    statuses.add((await client.post("/v1/chat/completions", content=f'{{"{MARK}'.encode())).status_code)
    statuses.add((await client.get("/v1/models", headers={"authorization": f"Bearer wrong-{KEY}"})).status_code)
    statuses.add((await client.get("/v1/models", headers={"x-api-key": f"wrong-{KEY}", "authorization": ""})).status_code)
    form = {"model": (None, stack.model), "file": (f"{MARK}.wav", MARK.encode() * 100, "audio/wav")}
    statuses.add((await client.post("/v1/audio/transcriptions", files=form)).status_code)
    return statuses


def _data_url(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


async def use_websocket(stack: TracedStack) -> None:
    url = str(stack.client.base_url).replace("http", "ws", 1) + "/v1/responses"
    headers = {"authorization": f"Bearer {KEY}"}
    async with websockets.connect(url, additional_headers=headers, max_size=None, proxy=None) as connection:
        for message in (
            {"type": "response.create", "model": stack.model, "input": MARK, "max_output_tokens": 2},
            {"type": "response.create", "model": stack.model, MARK: MARK},
        ):
            await connection.send(json.dumps(message))
            while (event := json.loads(await connection.recv()))["type"] not in (
                "response.completed",
                "response.incomplete",
                "error",
            ):
                assert event["type"].startswith("response.")


async def use_grpc(stack: TracedStack) -> None:
    preprocess = preprocess_pb2_grpc.PreprocessServiceStub(stack.channel)
    await preprocess.Tokenize(preprocess_pb2.TokenizeRequest(text=MARK))
    options = generation_pb2.GenerationOptions(sampling=common_pb2.SamplingParams(max_tokens=2), cache_salt=MARK)
    await stack.generation.Chat(chat_request(MARK, options=options), metadata=[("authorization", f"Bearer {KEY}")])
    broken = generation_pb2.GenerationOptions(constraint=common_pb2.Constraint(grammar=f"start: {MARK}"))
    with pytest.raises(grpc.aio.AioRpcError):
        await stack.generation.Chat(chat_request(MARK, options=broken))


async def test_no_line_holds_what_clients_sent(log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    async with traced_stack(monkeypatch, api_key=KEY) as stack:
        stack.client.headers["authorization"] = f"Bearer {KEY}"
        assert {200, 400, 401, 404} <= await use_rest(stack)
        await use_websocket(stack)
        await use_grpc(stack)
        await until(lambda: {one.service for one in stack.collector.spans} == {"gateway", "frontend", "encoder", "engine"})
        (await stack.chat("last")).raise_for_status()
        await until(lambda: any(one.service == "gateway" for one in stack.collector.trace("last")))
    encoded = base64.b64encode(photo()).decode()
    lines = check(log, encoded[:24], encoded[-48:-24], base64.b64encode(MARK.encode()).decode()[:6])
    assert {"triptych_gateway.access.middleware", "triptych_frontend.generation.call", "triptych_encoder.rpc.servicer"} <= {
        line["logger"] for line in lines
    }
    # Nor does a span, but for the name of a model.
    for one in stack.collector.spans:
        one.attributes.pop(GEN_AI_REQUEST_MODEL, None)
        assert MARK not in f"{one.name} {one.attributes} {one.span.events} {one.span.status}"


async def test_lines_of_a_traced_request_name_its_trace(log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    picture = {"type": "image_url", "image_url": {"url": _data_url(photo())}}
    async with traced_stack(monkeypatch) as stack:
        headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}
        (await stack.chat("r-1", picture, headers=headers)).raise_for_status()
    spans = {one.span.span_id.hex(): one for one in stack.collector.spans}
    lines = check(log)
    traced = {line["logger"]: line for line in lines if line.get("trace_id") == trace_id and line["level"] == "INFO"}
    for logger, service in (
        ("triptych_gateway.access.middleware", "gateway"),
        ("triptych_frontend.generation.call", "frontend"),
    ):
        assert spans[traced[logger]["span_id"]].service == service
        assert traced[logger]["request_id"] == "r-1"
    # The encoder's lines are of the frontend's call.
    item = traced["triptych_encoder.rpc.servicer"]
    assert (spans[item["span_id"]].name, item["request_id"]) == ("encode image", "r-1")


async def test_no_line_holds_what_the_model_said(log: io.StringIO) -> None:
    async with frontend_bench(says(ids(MARK))) as bench:
        app = create_app(GatewaySettings(frontend_addresses=(f"127.0.0.1:{bench.frontend.server.port}",)))
        async with serving_http(app) as (host, port), httpx.AsyncClient(trust_env=False) as client:
            await until(lambda: hasattr(app.state.gateway, "pool"))
            await until_connected(app)
            for stream in (False, True):
                model = bench.frontend.model_info().name
                body = {"messages": [{"role": "user", "content": "Hi"}], "model": model, "stream": stream}
                answer = await client.post(f"http://{host}:{port}/v1/chat/completions", json=body)
                said = re.findall(r'"content": ?"(.*?)"', answer.text)
                assert "".join(said) == MARK
    check(log)
