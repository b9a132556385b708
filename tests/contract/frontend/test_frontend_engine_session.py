"""The frontend's session with an engine: lost, found again, refused; and clients that leave."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from grpc.aio import AioRpcError
from support.builders.frontend import Bench, chat_request, frontend_bench, hello, ids, joined, streamed
from support.builders.tokenizer import small_model_dir
from support.fakes.engine import FakeEngine, says
from support.grpc_server import serving
from triptych.errors import (
    ContextLengthError,
    InternalError,
    InvalidRequestError,
    ServiceUnavailableError,
    TriptychError,
)
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, control_pb2, engine_pb2, generation_pb2, generation_pb2_grpc
from triptych_common.cluster import connection as cluster_connection
from triptych_common.model.store import model_info
from triptych_common.rpc.channels import open_channel
from triptych_frontend.engines import connection as engine_connection
from triptych_frontend.engines.router import EngineRouter

Options = generation_pb2.GenerationOptions


async def collect(call) -> list:
    return [response async for response in call]


async def error_of(call) -> TriptychError:
    with pytest.raises(AioRpcError) as caught:
        await collect(call)
    return from_rpc_error(caught.value)


def endless(request: engine_pb2.EngineRequest) -> list[engine_pb2.SequenceOutput]:
    """One token, and no end."""
    return [engine_pb2.SequenceOutput(token_ids=ids("Hello"))]


@asynccontextmanager
async def slow_client(bench: Bench) -> AsyncIterator[generation_pb2_grpc.GenerationServiceStub]:
    """A client whose connection takes 64 KiB and no more until it reads: without this gRPC widens the window by itself."""
    async with open_channel(f"127.0.0.1:{bench.frontend.server.port}", [("grpc.http2.bdp_probe", 0)]) as channel:
        yield generation_pb2_grpc.GenerationServiceStub(channel)


def engine_of(bench: Bench) -> engine_connection.EngineConnection:
    """The frontend's connection with its only engine."""
    (connection,) = bench.frontend._engines.connections
    return connection


async def until_idle(bench: Bench) -> None:
    """Wait until the frontend counts no live call."""
    assert await bench.frontend._admission.wait_idle(30)


async def test_a_cancelled_call_aborts_all_its_choices() -> None:
    async with frontend_bench(endless) as bench:
        call = bench.chat(chat_request(options=Options(n=3)))
        await anext(aiter(call))
        call.cancel()
        await bench.engine.until(lambda: bool(bench.engine.aborted) and not bench.engine.live)
        (request,) = bench.engine.requests
        assert (request.n, bench.engine.aborted) == (3, [request.request_id])
        await until_idle(bench)
        assert not engine_of(bench).carried


async def test_a_client_that_leaves_without_reading_aborts_too() -> None:
    """The frontend is then stuck in writing, not in waiting for the engine."""
    many = [engine_pb2.SequenceOutput(token_ids=ids("Hello there " * 100)) for _ in range(2000)]
    async with frontend_bench(lambda request: many) as bench, slow_client(bench) as client:
        call = client.ChatStream(streamed(chat_request()))
        await anext(aiter(call))
        await bench.engine.until(lambda: not any(sequence.outputs for sequence in bench.engine.live.values()))
        call.cancel()
        await bench.engine.until(lambda: not bench.engine.live)
        assert len(bench.engine.aborted) == 1
        await until_idle(bench)


async def test_a_slow_reader_gets_everything_in_fewer_messages() -> None:
    text = "Hello there, how are you today? " * 40_000
    async with frontend_bench(says(ids(text), tokens_per_step=100)) as bench, slow_client(bench) as client:
        bench.frontend._model.info.max_model_len = 1_000_000
        call = client.ChatStream(streamed(chat_request()))
        await bench.engine.until(lambda: bool(bench.engine.requests) and not bench.engine.live)
        responses = await collect(call)
    assert joined(responses) == text
    assert len(responses) < len(ids(text)) / 100
    assert responses[-1].usage.completion_tokens == len(ids(text))


@pytest.mark.usefixtures("short_grace")
async def test_a_lost_engine_ends_live_calls_at_once_and_is_found_again() -> None:
    async with frontend_bench(endless) as bench:
        call = bench.chat(chat_request())
        await anext(aiter(call))
        await bench.engine.go_down()
        lost = await error_of(call)
        await bench.until_ready(False)
        away = await error_of(bench.chat(chat_request()))
        info = await bench.control.GetServerInfo(control_pb2.GetServerInfoRequest())
        bench.engine.script = hello()
        await bench.engine.come_back()
        await bench.until_ready()
        assert joined(await collect(bench.chat(chat_request()))) == "Hello there"
    assert isinstance(lost, ServiceUnavailableError)
    assert "went away" in lost.message
    assert isinstance(away, ServiceUnavailableError)
    assert "no engine can take this request" in away.message
    assert away.retry_after_s
    assert info.instance.state == common_pb2.SERVER_STATE_UNAVAILABLE


async def test_an_engine_process_that_dies_is_found_again_on_its_port() -> None:
    model = model_info(small_model_dir(), "small")
    async with frontend_bench(endless, engine_model=model) as bench:
        address = engine_of(bench).address
        await bench.engine.go_down()
        await bench.until_ready(False)
    # A frontend that starts before its engine waits for it.
    engine = FakeEngine(model, hello())
    port = int(address.rsplit(":", 1)[1])
    async with frontend_bench(ready=False, engine_addresses=(f"127.0.0.1:{port}",)) as bench:
        info = await bench.control.GetServerInfo(control_pb2.GetServerInfoRequest())
        assert info.instance.state == common_pb2.SERVER_STATE_UNAVAILABLE
        async with serving(engine.register, port):
            await bench.until_ready()
            assert joined(await collect(bench.chat(chat_request()))) == "Hello there"
        await bench.until_ready(False)
        async with serving(FakeEngine(model, hello()).register, port):
            await bench.until_ready()


async def test_an_engine_that_answers_is_asked_again_without_longer_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be loading its model, and ready any moment."""
    monkeypatch.setattr(cluster_connection, "MIN_BACKOFF_S", 0.01)
    monkeypatch.setattr(cluster_connection, "MAX_BACKOFF_S", 1e6)  # pauses that doubled would be 20 minutes in all
    async with frontend_bench() as bench:
        await bench.engine.go_down()
        async with asyncio.timeout(30):
            await bench.engine.until(lambda: bench.engine.num_refused > 16)
        await bench.engine.come_back()
        await bench.until_ready()


async def test_an_engine_with_another_model_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    other = common_pb2.ModelInfo(name="other", fingerprint="f00d")
    with caplog.at_level(logging.ERROR):
        async with frontend_bench(engine_model=other, ready=False) as bench:
            error = await error_of(bench.chat(chat_request()))
            while "another model" not in error.message:
                error = await error_of(bench.chat(chat_request()))
            info = await bench.control.GetServerInfo(control_pb2.GetServerInfoRequest())
    assert isinstance(error, ServiceUnavailableError)
    assert info.instance.state == common_pb2.SERVER_STATE_UNAVAILABLE
    assert any("serves another model: other" in record.message for record in caplog.records)


async def test_the_engines_shorter_context_holds() -> None:
    model = model_info(small_model_dir(), "small")
    model.max_model_len = 40
    async with frontend_bench(engine_model=model) as bench:
        await collect(bench.complete(generation_pb2.CompleteRequest(text="\n" * 10)))
        too_long = Options(sampling=common_pb2.SamplingParams(max_tokens=31))
        refused = await error_of(bench.complete(generation_pb2.CompleteRequest(text="\n" * 10, options=too_long)))
        info = await bench.control.GetModelInfo(control_pb2.GetModelInfoRequest())
    (request,) = bench.engine.requests
    assert not request.sampling.HasField("max_tokens")  # the engine bounds it, and knows its KV cache
    assert isinstance(refused, ContextLengthError)
    assert refused.limit == "40"
    assert info.model.max_model_len == 40


async def test_many_calls_at_once_are_answered_each_with_its_own() -> None:
    async with frontend_bench() as bench:
        calls = [bench.chat(chat_request(f"Hi {number}")) for number in range(64)]
        answers = await asyncio.gather(*(collect(call) for call in calls))
        assert len({request.request_id for request in bench.engine.requests}) == 64
    assert [joined(answer) for answer in answers] == ["Hello there"] * 64


class Heard:
    """Remembers what it hears of a call."""

    def __init__(self) -> None:
        self.outputs: asyncio.Queue[engine_pb2.SequenceOutput] = asyncio.Queue()

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        self.outputs.put_nowait(output)

    def on_error(self, index: int, error: TriptychError) -> None:
        raise AssertionError(error)


async def test_an_engine_request_id_in_use_is_refused_and_its_owner_keeps_it() -> None:
    async with frontend_bench(endless) as bench:
        router, heard = EngineRouter(bench.frontend._engines), Heard()
        request = engine_pb2.EngineRequest(request_id="same", prompt_token_ids=[1])
        first = router.start(request, heard)
        with pytest.raises(InternalError, match="same"):
            router.start(request, Heard())
        assert (await asyncio.wait_for(heard.outputs.get(), 30)).token_ids[0] == ids("Hello")[0]
        first.close()
        assert not engine_of(bench).carried


async def test_many_requests_at_once_are_sent_in_bounded_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_connection.EngineConnection, "max_start_bytes", 1000)
    async with frontend_bench() as bench:
        # The size is mostly the salt's: prompt tokens are not all that a request carries.
        request = generation_pb2.CompleteRequest(text="\n", options=Options(cache_salt="s" * 200))
        answers = await asyncio.gather(*(collect(bench.complete(request)) for _ in range(10)))
        assert max(len(message.add) for message in bench.engine.messages) <= 3
        assert max(message.ByteSize() for message in bench.engine.messages) < 1100
    assert {joined(responses) for responses in answers} == {"Hello there"}


async def test_choices_travel_in_one_request() -> None:
    async with frontend_bench() as bench:
        responses = await collect(bench.chat(chat_request(options=Options(n=10))))
        (request,) = bench.engine.requests
    assert request.n == 10
    assert {joined(responses, index) for index in range(10)} == {"Hello there"}


async def test_a_request_too_large_for_a_message_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_connection.EngineConnection, "max_start_bytes", 1000)
    async with frontend_bench() as bench:
        refused = await error_of(bench.chat(chat_request(options=Options(cache_salt="s" * 1000))))
        assert joined(await collect(bench.chat(chat_request()))) == "Hello there"
        assert len(bench.engine.requests) == 1
    assert isinstance(refused, InvalidRequestError)
    assert refused.limit == "1000"


async def test_draining_finishes_live_calls_and_takes_no_more_until_it_is_woken() -> None:
    async with frontend_bench() as bench:
        await bench.engine.pause(after_steps=1)
        call = bench.chat(chat_request())
        await anext(aiter(call))
        at_once = await bench.control.Drain(control_pb2.DrainRequest(timeout_s=0))
        refused = await error_of(bench.chat(chat_request()))
        await bench.until_ready(False)
        await bench.engine.resume()
        rest = await collect(call)
        drained = await bench.control.Drain(control_pb2.DrainRequest(timeout_s=30))
        info = await bench.control.GetServerInfo(control_pb2.GetServerInfoRequest())
        await bench.control.WakeUp(control_pb2.WakeUpRequest())
        await bench.until_ready()
        awake = await collect(bench.chat(chat_request()))
    assert (at_once.drained, at_once.num_live_requests) == (False, 1)
    assert isinstance(refused, ServiceUnavailableError)
    assert rest[-1].usage.completion_tokens
    assert drained.drained
    assert info.instance.state == common_pb2.SERVER_STATE_DRAINING
    assert joined(awake) == "Hello there"


async def test_the_control_port_answers_for_what_the_frontend_has() -> None:
    async with frontend_bench() as bench:
        with pytest.raises(AioRpcError, match="no cache memory"):
            await bench.control.Sleep(control_pb2.SleepRequest())
        reset = await bench.control.ResetCache(control_pb2.ResetCacheRequest())
    assert reset.num_entries == 0


@pytest.mark.usefixtures("short_grace")
async def test_nothing_is_left_behind() -> None:
    before = asyncio.all_tasks()
    async with frontend_bench(endless) as bench:
        call = bench.chat(chat_request())
        await anext(aiter(call))
        await bench.engine.go_down()
        await error_of(call)
    del call, bench
    gc.collect()
    closing = asyncio.all_tasks() - before  # generators that were collected close themselves in tasks of the loop
    pending = (await asyncio.wait(closing, timeout=30))[1] if closing else closing
    assert not pending
