"""A frontend with several engines: which one gets a request, and who takes over from one that is lost or drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from grpc.aio import AioRpcError
from support.builders.frontend import Bench, chat_request, frontend_bench, hello, joined
from support.builders.tokenizer import small_model_dir
from support.fakes.engine import FakeEngine
from support.grpc_server import serving
from support.waiting import until
from triptych.errors import InternalError, QueueFullError
from triptych.v1 import common_pb2, engine_pb2, generation_pb2
from triptych_common.cluster.breaker import MAX_FAILURES
from triptych_common.model.store import model_info
from triptych_common.rpc.control import State
from triptych_common.rpc.status import to_request_error
from triptych_frontend.engines import connection as engine_connection
from triptych_frontend.engines.policy import demand_of
from triptych_frontend.engines.router import EngineRouter


async def collect(call) -> list:
    return [response async for response in call]


@asynccontextmanager
async def two_engines(*, continuation: bool = True) -> AsyncIterator[tuple[Bench, FakeEngine, FakeEngine]]:
    """A frontend in front of two engines that it has both found.

    Args:
        continuation: they can go on with a sequence of another engine.
    """
    path = small_model_dir()
    other = FakeEngine(model_info(path, path.name), hello())
    async with AsyncExitStack() as stack:
        first_address = await stack.enter_async_context(serving(other.register))
        engine = FakeEngine(model_info(path, path.name), hello())
        for one in (other, engine):
            one.model.capabilities.continuation = continuation
        second_address = await stack.enter_async_context(serving(engine.register))
        bench = await stack.enter_async_context(frontend_bench(engine_addresses=(first_address, second_address)))
        await until(lambda: len(bench.frontend._engines.ready) == 2)
        yield bench, other, engine


async def test_requests_go_to_the_engine_with_the_least_load() -> None:
    async with two_engines() as (bench, first, second):
        await first.pause()
        await second.pause()
        calls = [asyncio.create_task(collect(bench.chat(chat_request()))) for _ in range(10)]
        await until(lambda: len(first.requests) + len(second.requests) == 10)
        assert (len(first.requests), len(second.requests)) == (5, 5)
        await first.resume()
        await second.resume()
        assert [joined(answer) for answer in await asyncio.gather(*calls)] == ["Hello there"] * 10


async def test_a_request_that_nobody_began_goes_to_the_other_engine() -> None:
    async with two_engines() as (bench, first, second):
        await first.pause()
        await second.pause()
        calls = [asyncio.create_task(collect(bench.chat(chat_request()))) for _ in range(6)]
        await until(lambda: len(first.requests) + len(second.requests) == 6)
        await first.go_down()
        await until(lambda: len(second.requests) == 6)
        await second.resume()
        assert [joined(answer) for answer in await asyncio.gather(*calls)] == ["Hello there"] * 6


async def test_a_request_that_has_begun_goes_on_at_the_other_engine() -> None:
    async with two_engines() as (bench, first, second):
        await first.pause(after_steps=1)
        await second.pause(after_steps=1)
        call = aiter(bench.chat(chat_request()))
        begun = [await anext(call)]
        lost, left = (first, second) if first.requests else (second, first)
        await lost.go_down()
        await left.resume()
        assert joined(begun + [response async for response in call]) == "Hello there"
        assert left.requests[0].num_output_tokens == 1


async def test_a_request_that_has_begun_ends_with_an_error_where_no_engine_can_go_on_with_it() -> None:
    async with two_engines(continuation=False) as (bench, first, second):
        await first.pause(after_steps=1)
        await second.pause(after_steps=1)
        call = bench.chat(chat_request())
        await anext(aiter(call))
        lost, left = (first, second) if first.requests else (second, first)
        await lost.go_down()
        with pytest.raises(AioRpcError, match="went away"):
            await collect(call)
        await left.resume()
        assert joined(await collect(bench.chat(chat_request()))) == "Hello there"


async def test_what_one_engine_has_no_room_for_goes_to_the_other() -> None:
    async with two_engines() as (bench, first, second):
        error = to_request_error(QueueFullError("full"))
        refused = engine_pb2.SequenceOutput(finish_reason=common_pb2.FINISH_REASON_ERROR, error=error)
        first.script = lambda request: [refused]
        answers = [joined(await collect(bench.chat(chat_request()))) for _ in range(4)]
        assert answers == ["Hello there"] * 4
        second.script = first.script
        with pytest.raises(AioRpcError, match="full"):
            await collect(bench.chat(chat_request()))


async def test_an_engine_that_goes_away_gets_no_more_and_finishes_what_it_has() -> None:
    async with two_engines() as (bench, first, second):
        await first.pause(after_steps=1)
        await second.pause(after_steps=1)
        call = bench.chat(chat_request())
        await anext(aiter(call))
        leaving, left = (first, second) if first.requests else (second, first)
        await leaving.announce_going_away()
        await until(lambda: len(bench.frontend._engines.ready) == 1)
        await left.resume()
        assert joined(await collect(bench.chat(chat_request()))) == "Hello there"
        assert len(leaving.requests) == 1
        await leaving.resume()
        rest = await collect(call)
        assert rest[-1].usage.completion_tokens


async def test_a_rolling_restart_refuses_nothing() -> None:
    """The second engine leaves when the first one is ready again, but the frontend does not know that yet."""
    async with two_engines() as (bench, first, second):
        await first.go_down()
        await until(lambda: len(bench.frontend._engines.ready) == 1)
        await second.pause()
        unbegun = asyncio.create_task(collect(bench.chat(chat_request())))
        await until(lambda: len(second.requests) == 1)
        await second.go_down()
        await until(lambda: not bench.frontend._engines.ready)
        fresh = asyncio.create_task(collect(bench.chat(chat_request())))
        await asyncio.sleep(0.1)
        assert not unbegun.done()
        assert not fresh.done()
        await first.come_back()
        assert [joined(await answer) for answer in (unbegun, fresh)] == ["Hello there"] * 2


async def test_what_waits_for_an_engine_may_be_cancelled_and_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_common.cluster.pool.GRACE_S", 1.0)
    async with two_engines() as (bench, first, second):
        for engine in (first, second):
            await engine.go_down()
        await until(lambda: not bench.frontend._engines.ready)
        cancelled = bench.chat(chat_request())
        cancelled.cancel()
        with pytest.raises(AioRpcError, match="no engine can take this request"):
            await collect(bench.chat(chat_request()))
        await first.come_back()
        await until(lambda: bool(bench.frontend._engines.ready))
        assert joined(await collect(bench.chat(chat_request()))) == "Hello there"
        assert len(first.requests) == 1


async def test_requests_with_the_same_media_go_to_the_same_engine_unless_it_is_overloaded() -> None:
    async with two_engines() as (bench, *_):
        router = EngineRouter(bench.frontend._engines)
        keys = [bytes([number]) * 32 for number in range(40)]
        requests = [engine_pb2.EngineRequest(media=[common_pb2.MediaRef(key=key)]) for key in keys]
        homes = [router.choose(demand_of(request)) for request in requests]
        assert homes == [router.choose(demand_of(request)) for request in requests]
        assert len(set(homes)) == 2
        busy = homes[0]
        assert busy is not None
        busy._num_unreported = 100
        assert router.choose(demand_of(requests[0])) is not busy


async def test_an_engine_that_took_some_sequences_of_a_request_gives_them_up_when_another_gets_all() -> None:
    async with two_engines() as (bench, first, second):
        for engine in (first, second):
            await engine.pause()

        def script(request: engine_pb2.EngineRequest) -> list[engine_pb2.SequenceOutput]:
            return []

        first.script = second.script = script
        call = asyncio.create_task(collect(bench.chat(chat_request(options=generation_pb2.GenerationOptions(n=3)))))
        await until(lambda: len(first.requests) + len(second.requests) == 1)
        took, other = (first, second) if first.requests else (second, first)
        other.script = hello()
        request_id = took.requests[0].request_id
        error = to_request_error(QueueFullError("full"))
        refused = engine_pb2.SequenceOutput(finish_reason=common_pb2.FINISH_REASON_ERROR, error=error)
        took.live[request_id, 2].outputs = [refused]
        await took.resume()
        await other.resume()
        answer = await asyncio.wait_for(call, 5)
        assert [joined(answer, index) for index in range(3)] == ["Hello there"] * 3
        await until(lambda: request_id in took.aborted)


async def test_a_file_names_the_engines(tmp_path: Path) -> None:
    path, file = small_model_dir(), tmp_path / "engines"
    engine = FakeEngine(model_info(path, path.name), hello())
    file.write_text("# none yet\n")
    async with serving(engine.register) as address, frontend_bench(ready=False, engine_addresses=(f"file:{file}",)) as bench:
        file.write_text(f"{address}  # the first one\n")
        await until(lambda: len(bench.frontend._engines.ready) == 1)
        assert joined(await collect(bench.chat(chat_request()))) == "Hello there"
    assert len(engine.requests) == 1


async def test_an_engine_that_keeps_failing_gets_no_more_while_there_is_another() -> None:
    async with two_engines() as (bench, first, second):
        error = to_request_error(InternalError("the step failed"))
        failed = engine_pb2.SequenceOutput(finish_reason=common_pb2.FINISH_REASON_ERROR, error=error)
        first.script = lambda request: [failed]
        ends = []
        for _ in range(60):
            try:
                ends.append(joined(await collect(bench.chat(chat_request()))))
            except AioRpcError as failure:
                ends.append(str(failure.details()))
        # Without the breaker, the engine that fails at once would always be the one with the least load.
        assert ends.count("the step failed") == MAX_FAILURES
        assert set(ends[-40:]) == {"Hello there"}
        second.script = first.script
        with pytest.raises(AioRpcError, match="the step failed"):
            await collect(bench.chat(chat_request()))


async def test_the_only_engine_is_used_even_if_it_keeps_failing() -> None:
    async with frontend_bench() as bench:
        error = to_request_error(InternalError("the step failed"))
        failed = engine_pb2.SequenceOutput(finish_reason=common_pb2.FINISH_REASON_ERROR, error=error)
        bench.engine.script = lambda request: [failed]
        for _ in range(MAX_FAILURES + 2):
            with pytest.raises(AioRpcError, match="the step failed"):
                await collect(bench.chat(chat_request()))
        bench.engine.script = hello()
        assert joined(await collect(bench.chat(chat_request()))) == "Hello there"


async def test_a_frontend_whose_engines_are_all_frozen_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm-project/vllm #53157: the server came up and answered 200 for its models, while nothing could be generated."""
    monkeypatch.setattr(engine_connection, "_TICK_S", 0.01)
    monkeypatch.setattr(engine_connection, "SILENCE_S", 0.1)
    async with two_engines() as (bench, first, second):
        state = State.SERVER_STATE_SERVING
        assert bench.frontend.state == state
        await first.pause()
        await second.pause()
        calls = [asyncio.create_task(collect(bench.chat(chat_request()))) for _ in range(2)]
        await until(lambda: bench.frontend.state == State.SERVER_STATE_UNAVAILABLE)
        await first.resume()
        await second.resume()
        # They are ready again without a restart, although nobody asks them for anything more.
        await until(lambda: bench.frontend.state == state)
        await asyncio.gather(*calls, return_exceptions=True)
        assert joined(await collect(bench.chat(chat_request()))) == "Hello there"
