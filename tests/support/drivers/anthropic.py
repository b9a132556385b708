"""Anthropic's client against the real gateway with a fake frontend, and deltas of answers for the fake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
from triptych.v1 import common_pb2, generation_pb2

from support.fakes.frontend import MODEL, FakeFrontend, Script
from support.fakes.gateway import gateway_app

LENGTH = common_pb2.FINISH_REASON_LENGTH
STOP = common_pb2.FINISH_REASON_STOP
Delta = generation_pb2.ChoiceDelta
HI: dict[str, Any] = {"model": MODEL.name, "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]}
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def thought(*texts: str) -> list[Delta]:
    """Deltas of thinking."""
    return [Delta(reasoning=text) for text in texts]


def text(*texts: str) -> list[Delta]:
    """Deltas of text."""
    return [Delta(text=text) for text in texts]


def call(index: int, name: str, *pieces: str) -> list[Delta]:
    """Deltas of a tool call: its name, and pieces of its arguments."""
    start = generation_pb2.ToolCallDelta(index=index, id=f"call_{index}", name=name)
    further = [generation_pb2.ToolCallDelta(index=index, arguments=piece) for piece in pieces]
    return [Delta(tool_call=piece) for piece in (start, *further)]


def answers(*groups: Sequence[Delta], **last: Any) -> Script:
    """A script of one choice. Its last delta has the finish reason, by default STOP, or TOOL_CALLS if it calls tools."""
    deltas = [delta for group in groups for delta in group]
    reason = common_pb2.FINISH_REASON_TOOL_CALLS if any(delta.HasField("tool_call") for delta in deltas) else STOP
    return Script([[*deltas, Delta(**({"finish_reason": reason} | last))]])


@asynccontextmanager
async def async_client(frontend: FakeFrontend, client_key: str = "key", **settings: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """The official asynchronous client, with this key. The gateway has these settings."""
    async with gateway_app(frontend, **settings) as app:
        transport = httpx2.ASGITransport(app)
        http = httpx2.AsyncClient(transport=transport)
        async with anthropic.AsyncAnthropic(
            base_url="http://gateway", api_key=client_key, max_retries=0, http_client=http
        ) as client:
            yield client


def sse(body: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and data of each event. The body must contain nothing else."""
    assert body.endswith(b"\n\n")
    for event in body.removesuffix(b"\n\n").split(b"\n\n"):
        name, data = event.split(b"\n")
        assert name.startswith(b"event: ")
        assert data.startswith(b"data: ")
        yield name.removeprefix(b"event: ").decode(), data.removeprefix(b"data: ")
