"""The gateway's calls on its one stream to the frontend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import pytest
from support.fakes.frontend import MODEL, FakeFrontend, fails, running, says
from support.waiting import until
from triptych.errors import InvalidRequestError, QueueFullError, ServiceUnavailableError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.resolver import StaticResolver
from triptych_gateway.frontends import connection as frontend_connection
from triptych_gateway.frontends.calls import FrontendCall
from triptych_gateway.frontends.connection import FrontendConnection
from triptych_gateway.frontends.models import ServedModels
from triptych_gateway.frontends.router import FrontendRouter

CONTEXT = common_pb2.CallContext()


@asynccontextmanager
async def router_of(*addresses: str, ready: bool = True) -> AsyncIterator[FrontendRouter]:
    """A router over frontends at these addresses."""
    pool = Pool("frontend", StaticResolver(addresses), FrontendConnection)
    task = asyncio.create_task(pool.run())
    router = FrontendRouter(pool, ServedModels(pool))
    try:
        if ready:
            await until(lambda: len(pool.ready) == len(addresses))
        yield router
    finally:
        await router.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def a_client(frontend: FakeFrontend, port: int = 0) -> AsyncIterator[FrontendRouter]:
    async with running(frontend, port) as address, router_of(address) as router:
        yield router


def complete(text: str, model: str = MODEL.name) -> FrontendCall:
    return FrontendCall(generation_pb2.CompleteRequest(model=model, text=text), f"id-{text}")


async def texts_of(client: FrontendRouter, *texts: str) -> list[str]:
    """What each prompt got."""
    got = ["" for _ in texts]
    async with aclosing(client.generate([complete(text) for text in texts], CONTEXT)) as batches:
        async for batch in batches:
            for place, response in batch:
                got[place] += "".join(delta.text for delta in response.choices)
    return got


def repeats(request: generation_pb2.CompleteRequest):
    """Says the prompt, letter by letter."""
    return says(*request.text)


async def test_each_call_gets_its_own_responses_in_order() -> None:
    frontend = FakeFrontend()
    frontend.script = repeats
    prompts = [[f"prompt {number} of answer {answer}" for number in range(5)] for answer in range(20)]
    async with a_client(frontend) as client:
        answers = await asyncio.gather(*(texts_of(client, *of_answer) for of_answer in prompts))
    assert answers == prompts
    assert sorted(frontend.request_ids) == sorted(f"id-{text}" for of_answer in prompts for text in of_answer)


async def test_the_first_error_ends_all_calls_of_the_answer_and_no_others() -> None:
    frontend, gate = FakeFrontend(), asyncio.Semaphore(0)
    frontend.script = lambda request: fails(QueueFullError("full")) if request.text == "bad" else says("a", "b", gate=gate)
    async with a_client(frontend) as client:
        other = asyncio.create_task(texts_of(client, "other"))
        await frontend.arrivals.get()
        with pytest.raises(QueueFullError):
            await texts_of(client, "good", "bad")
        async with asyncio.timeout(10):
            await frontend.was_cancelled.wait()
        assert not other.done()
        for _ in range(3):
            gate.release()
        assert await other == ["ab"]
    assert frontend.num_live == 0


async def test_closing_early_cancels_all_calls() -> None:
    frontend = FakeFrontend()
    frontend.script = says("a", "b", gate=asyncio.Semaphore(2))
    async with a_client(frontend) as client:
        async with aclosing(client.generate([complete("x"), complete("y")], CONTEXT)) as batches:
            await anext(batches)
        await until(lambda: frontend.num_live == 0)


async def test_a_lost_frontend_fails_its_calls_and_the_next_ones_find_the_new_one() -> None:
    frontend = FakeFrontend()
    frontend.script = says("a", "b", gate=asyncio.Semaphore(1))
    async with AsyncExitStack() as stack:
        async with running(frontend) as address:
            client = await stack.enter_async_context(router_of(address))
            batches = client.generate([complete("x")], CONTEXT)
            assert [place for place, _ in await anext(batches)] == [0]
        with pytest.raises(ServiceUnavailableError):
            await anext(batches)
        with pytest.raises(ServiceUnavailableError):
            await texts_of(client, "nobody there")
        async with running(FakeFrontend(), int(address.rsplit(":", 1)[1])), asyncio.timeout(30):
            while True:
                try:
                    assert await texts_of(client, "again") == ["Hello"]
                    break
                except ServiceUnavailableError:
                    await asyncio.sleep(0.05)


async def test_a_request_too_large_for_the_stream_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend_connection.FrontendConnection, "max_start_bytes", 1000)
    async with a_client(FakeFrontend()) as client:
        with pytest.raises(InvalidRequestError, match="at most 1000 bytes"):
            await texts_of(client, "x" * 1000)
        # Together they are more than one message may carry.
        assert await texts_of(client, *("x" * 600 for _ in range(5))) == ["Hello"] * 5


async def test_a_reader_that_lags_gets_everything_in_one_batch() -> None:
    frontend = FakeFrontend()
    frontend.script = repeats
    async with a_client(frontend) as client:
        batches = client.generate([complete("abcdef")], CONTEXT)
        first = await anext(batches)
        await until(lambda: frontend.num_responses == 6)
        # A call made afterwards is answered afterwards.
        await texts_of(client, "x")
        rest = await anext(batches)
    assert "".join(delta.text for _, response in first + rest for delta in response.choices) == "abcdef"
