"""OpenAI's own clients, talking to the gateway over a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai

from support.fakes.frontend import FakeFrontend
from support.fakes.gateway import gateway_server


@asynccontextmanager
async def openai_client(frontend: FakeFrontend, **settings: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """The asynchronous client."""
    async with (
        gateway_server(frontend, **settings) as (host, port),
        openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="any", max_retries=0) as client,
    ):
        yield client


@asynccontextmanager
async def sync_openai_client(frontend: FakeFrontend, **settings: Any) -> AsyncIterator[openai.OpenAI]:
    """The synchronous client. Call it in a thread."""
    async with gateway_server(frontend, **settings) as (host, port):
        with openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="any", max_retries=0) as client:
            yield client
