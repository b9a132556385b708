"""The real gateway with a fake frontend, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from triptych_gateway.app import create_app
from triptych_gateway.connections.http_protocol import LimitedHttpProtocol
from triptych_gateway.main import listen
from triptych_gateway.settings import GatewaySettings

from support.fakes.frontend import MODEL, FakeFrontend, running
from support.waiting import until

CHAT: dict[str, Any] = {"model": MODEL.name, "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION: dict[str, Any] = {"model": MODEL.name, "prompt": "Once"}


@asynccontextmanager
async def gateway_app(frontend: FakeFrontend, **settings: Any) -> AsyncIterator[FastAPI]:
    """The application, connected to the fake."""
    async with running(frontend) as address:
        app = create_app(GatewaySettings(frontend_addresses=(address,), **settings))
        async with app.router.lifespan_context(app):
            await until_connected(app)
            yield app


async def until_connected(app: FastAPI) -> None:
    """Wait until the gateway knows its frontends, ready or not."""
    pool = app.state.gateway.pool
    await until(lambda: bool(pool.connections) and all(frontend.takes_calls for frontend in pool.connections))


@asynccontextmanager
async def gateway_client(frontend: FakeFrontend | None = None, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client that calls the application directly, without a socket."""
    async with gateway_app(frontend or FakeFrontend(), **settings) as app, client_of(app) as client:
        yield client


@contextmanager
def running_gateway() -> Iterator[Callable[[str, bytes], httpx.Response]]:
    """(path, JSON body) -> answer, for tests without an event loop that post many bodies to one gateway."""
    stop = asyncio.Event()

    async def serve(started: asyncio.Future[httpx.AsyncClient]) -> None:
        async with gateway_client() as client:
            started.set_result(client)
            await stop.wait()

    async def start() -> tuple[httpx.AsyncClient, asyncio.Task[None]]:
        started: asyncio.Future[httpx.AsyncClient] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(serve(started))
        await asyncio.wait({started, task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        return started.result(), task

    async def end(task: asyncio.Task[None]) -> None:
        stop.set()
        await task

    with asyncio.Runner() as runner:
        client, task = runner.run(start())
        try:
            headers = {"content-type": "application/json"}
            yield lambda path, body: runner.run(client.post(path, content=body, headers=headers))
        finally:
            runner.run(end(task))


def client_of(app: FastAPI) -> httpx.AsyncClient:
    """A client for an application whose lifespan is running."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


@asynccontextmanager
async def gateway_server(frontend: FakeFrontend, **settings: Any) -> AsyncIterator[tuple[str, int]]:
    """The gateway on a real socket. Yields host and port."""
    async with running(frontend) as address:
        app = create_app(GatewaySettings(frontend_addresses=(address,), **settings))
        async with serving_http(app) as place:
            await until(lambda: hasattr(app.state.gateway, "pool"))
            await until_connected(app)
            yield place


class _PromptServer(uvicorn.Server):
    """Ends as soon as it is told to. uvicorn's own server looks every 0.1 s."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.end = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.end.wait()


@asynccontextmanager
async def serving_http(app: FastAPI) -> AsyncIterator[tuple[str, int]]:
    """The application behind uvicorn. Yields host and port."""
    listener = listen("127.0.0.1", 0)
    host, port = listener.getsockname()
    config = uvicorn.Config(
        app, http=LimitedHttpProtocol, ws="websockets-sansio", log_config=None, log_level="warning", access_log=False
    )
    server = _PromptServer(config)
    # The inner part of `serve`, which leaves the test's signal handlers alone.
    task = asyncio.create_task(server._serve(sockets=[listener]))
    try:
        yield host, port
    finally:
        app.state.gateway.stop_requests()
        server.end.set()
        await task


def events_of(body: bytes) -> list[bytes]:
    """The data of each server-sent event. The body must contain nothing else."""
    assert body.endswith(b"\n\n")
    events = body.removesuffix(b"\n\n").split(b"\n\n")
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
    return [event.removeprefix(b"data: ") for event in events]
