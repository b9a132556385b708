"""Ollama's client against the real gateway with a fake frontend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import ollama
import orjson
from fastapi import FastAPI
from triptych.v1 import common_pb2

from support.fakes.frontend import MODEL, FakeFrontend
from support.fakes.gateway import client_of, gateway_app
from support.waiting import until

HI: dict[str, Any] = {"model": MODEL.name, "messages": [{"role": "user", "content": "Hi"}]}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@asynccontextmanager
async def ready_app(frontend: FakeFrontend, **settings: Any) -> AsyncIterator[FastAPI]:
    """The application, whose frontend is ready, so that the model counts as loaded."""
    async with gateway_app(frontend, **settings) as app:
        await until(lambda: bool(app.state.gateway.pool.ready))
        yield app


@asynccontextmanager
async def ready_client(frontend: FakeFrontend | None = None, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client for it."""
    async with ready_app(frontend or FakeFrontend(), **settings) as app, client_of(app) as client:
        yield client


@asynccontextmanager
async def async_client(frontend: FakeFrontend, **settings: Any) -> AsyncIterator[ollama.AsyncClient]:
    """The official asynchronous client. The gateway has these settings."""
    async with ready_app(frontend, **settings) as app:
        client = ollama.AsyncClient("http://gateway", transport=httpx.ASGITransport(app))
        try:
            yield client
        finally:
            await client.close()


def lines_of(body: bytes) -> list[dict[str, Any]]:
    """The lines of a stream. Each must be an object, and end with a newline."""
    assert body.endswith(b"\n")
    return [orjson.loads(line) for line in body.removesuffix(b"\n").split(b"\n")]


def joined(lines: Sequence[ollama.ChatResponse]) -> ollama.ChatResponse:
    """A streamed answer as one: the texts of its lines, their tool calls, and the rest of the last line."""
    last = lines[-1].model_copy(deep=True)
    last.message.content = "".join(line.message.content or "" for line in lines)
    last.message.thinking = "".join(line.message.thinking or "" for line in lines) or None
    last.message.tool_calls = [call for line in lines for call in line.message.tool_calls or ()] or None
    last.logprobs = [entry for line in lines for entry in line.logprobs or ()] or None
    return last


def able(*, max_model_len: int = 2048, **capabilities: Any) -> FakeFrontend:
    """A frontend whose model has these capabilities."""
    frontend = FakeFrontend()
    frontend.model = common_pb2.ModelInfo()
    frontend.model.CopyFrom(MODEL)
    frontend.model.max_model_len = max_model_len
    frontend.model.capabilities.MergeFrom(common_pb2.Capabilities(**capabilities))
    return frontend
