"""EngineService over real gRPC, on the real scheduler and step loop, with a runner that has no model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import grpc
import pytest
from support.builders.engine import GREEDY, a_scheduler
from support.fakes.grpc_server import serving
from support.fakes.runner import VOCAB_SIZE, FakeRunner, expected_output
from support.fakes.waiting import until
from triptych_common.pb import common_pb2, engine_pb2, engine_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.errors import InvalidRequestError, NeverFitsError, QueueFullError, ServiceUnavailableError, TriptychError
from triptych_common.rpc.status import from_request_error, from_rpc_error
from triptych_engine.core import EngineCore
from triptych_engine.rpc.outbox import Outbox
from triptych_engine.rpc.servicer import EngineServicer

MODEL = common_pb2.ModelInfo(name="fake", max_model_len=256, vocab_size=VOCAB_SIZE)
NUM_BLOCKS = 64


@dataclass
class Served:
    """A running engine and a stub that talks to it."""

    stub: engine_pb2_grpc.EngineServiceStub
    runner: FakeRunner
    core: EngineCore
    servicer: EngineServicer
    outbox: Outbox

    async def until_idle(self) -> None:
        """Wait until nothing is live, then check that every block is back."""
        async with asyncio.timeout(10):
            await self.outbox.wait_idle()
            while self.core.load.num_running or self.core.load.num_waiting:
                await self.core_turn()
        assert self.core.load.num_free_blocks == NUM_BLOCKS

    async def until_a_command_waits(self) -> None:
        """Wait until the step loop, held by the runner's gate, has a command to run after the step in hand, or has run it."""
        await until(lambda: self.core._commands.qsize() > 0 or self.outbox.num_live_requests == 0)

    async def core_turn(self) -> None:
        await asyncio.wrap_future(self.core.call(lambda: None))


@asynccontextmanager
async def an_engine(**scheduler_options: int) -> AsyncIterator[Served]:
    runner = FakeRunner()
    scheduler = a_scheduler(NUM_BLOCKS, **scheduler_options)  # type: ignore[arg-type]
    outbox = Outbox(asyncio.get_running_loop(), lambda load: servicer.on_load(load))
    servicer = EngineServicer(outbox)
    core = EngineCore(scheduler, runner, outbox.publish)
    core.start()
    servicer.attach(core, MODEL, scheduler.kv_cache.capacity_tokens)
    try:
        async with (
            serving(lambda server: engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server)) as address,
            open_channel(address) as channel,
        ):
            yield Served(engine_pb2_grpc.EngineServiceStub(channel), runner, core, servicer, outbox)
    finally:
        if runner.gate is not None:
            runner.gate.release(10_000)
        await asyncio.to_thread(core.stop)


def a_message(
    request_id: str, prompt: list[int] | None = None, max_tokens: int = 8, **sampling: object
) -> engine_pb2.EngineRequest:
    params = common_pb2.SamplingParams(max_tokens=max_tokens, temperature=0, **sampling)  # type: ignore[arg-type]
    return engine_pb2.EngineRequest(request_id=request_id, prompt_token_ids=prompt or [1, 2, 3], sampling=params)


def alone(prompt: list[int], max_tokens: int = 8) -> list[int]:
    return expected_output(prompt, replace(GREEDY, max_tokens=max_tokens))


class Session:
    """One open session, with outputs sorted by request."""

    def __init__(self, stub: engine_pb2_grpc.EngineServiceStub) -> None:
        self.call = stub.Session()
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, engine_pb2.SequenceOutput] = {}
        self.num_messages = 0

    async def open(self) -> engine_pb2.SessionResponse:
        return await self.read()

    async def read(self) -> engine_pb2.SessionResponse:
        async with asyncio.timeout(10):
            message = await self.call.read()
        assert message is not grpc.aio.EOF
        self.num_messages += 1
        for output in message.outputs:
            assert output.request_id not in self.last, "an output after the last"
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason:
                self.last[output.request_id] = output
        return message

    async def add(self, *requests: engine_pb2.EngineRequest) -> None:
        await self.call.write(engine_pb2.SessionRequest(add=requests))

    async def until_ended(self, *request_ids: str) -> None:
        while not set(request_ids) <= set(self.last):
            await self.read()


async def test_the_first_message_tells_the_model():
    async with an_engine() as engine:
        session = Session(engine.stub)
        first = await session.open()
        assert first.model.name == "fake"
        assert first.load.num_free_blocks == NUM_BLOCKS
        session.call.cancel()


async def test_one_message_per_step_carries_all_requests():
    async with an_engine() as engine:
        session = Session(engine.stub)
        await session.open()
        engine.runner.gate = threading.Semaphore(0)
        prompts = {f"r{i}": [i, i + 1] for i in range(6)}
        await session.add(*(a_message(request_id, prompt) for request_id, prompt in prompts.items()))
        # All are there before the first step ends, which may have begun with some of them: nine steps are enough.
        await until(lambda: engine.outbox.num_live_requests == len(prompts))
        for _ in range(9):
            engine.runner.gate.release()
        await session.until_ended(*prompts)
        assert session.tokens == {request_id: alone(prompt) for request_id, prompt in prompts.items()}
        assert session.num_messages <= 1 + 9
        await engine.until_idle()


async def test_each_session_gets_its_own_outputs():
    async with an_engine() as engine:
        first, second = Session(engine.stub), Session(engine.stub)
        await first.open()
        await second.open()
        await first.add(a_message("a", [1]))
        await second.add(a_message("b", [2]))
        await first.until_ended("a")
        await second.until_ended("b")
        assert set(first.tokens) == {"a"}
        assert set(second.tokens) == {"b"}


async def test_a_refused_request_ends_alone_on_its_session():
    async with an_engine() as engine:
        session = Session(engine.stub)
        await session.open()
        await session.add(a_message("bad", [1, VOCAB_SIZE]), a_message("good"), a_message("huge", [1] * 200, 57), a_message("good"))
        await session.until_ended("bad", "huge")
        assert isinstance(from_request_error(session.last["bad"].error), InvalidRequestError)
        assert from_request_error(session.last["huge"].error).reason == "CONTEXT_LENGTH_EXCEEDED"


async def test_a_request_that_can_never_fit_is_refused_at_once():
    async with an_engine(max_model_len=10_000) as engine:
        model = common_pb2.ModelInfo(name="fake", max_model_len=10_000, vocab_size=VOCAB_SIZE)
        engine.servicer.attach(engine.core, model, NUM_BLOCKS * 4)
        session = Session(engine.stub)
        await session.open()
        await session.add(a_message("r", [1] * 200, 100))
        await session.until_ended("r")
        assert isinstance(from_request_error(session.last["r"].error), NeverFitsError)


async def test_abort_by_id_on_the_session_ends_within_a_step():
    async with an_engine() as engine:
        session = Session(engine.stub)
        await session.open()
        engine.runner.gate = threading.Semaphore(0)
        await session.add(a_message("r", max_tokens=200))
        for _ in range(2):
            engine.runner.gate.release()
            await session.read()
        await session.call.write(engine_pb2.SessionRequest(abort=["r"]))
        await engine.until_a_command_waits()
        engine.runner.gate.release(1)
        await session.until_ended("r")
        assert session.last["r"].finish_reason == common_pb2.FINISH_REASON_ABORT
        assert len(session.tokens["r"]) <= 3
        await engine.until_idle()


async def test_a_lost_session_aborts_what_it_started():
    async with an_engine() as engine:
        session, other = Session(engine.stub), Session(engine.stub)
        await session.open()
        await other.open()
        engine.runner.gate = threading.Semaphore(1)
        await session.add(*(a_message(f"r{i}", [i], max_tokens=200) for i in range(5)))
        await other.add(a_message("kept", [9], max_tokens=4))
        await session.read()
        session.call.cancel()
        engine.runner.gate.release(1000)
        await other.until_ended("kept")
        assert other.tokens["kept"] == alone([9], 4)
        await engine.until_idle()


async def test_an_engine_that_refuses_ends_its_sessions_after_their_last_request():
    async with an_engine() as engine:
        busy, idle = Session(engine.stub), Session(engine.stub)
        await busy.open()
        await idle.open()
        engine.runner.gate = threading.Semaphore(1)
        await busy.add(a_message("r"))
        await busy.read()
        engine.servicer.refuse("the engine is draining")
        async with asyncio.timeout(10):
            assert await idle.call.read() is grpc.aio.EOF
        engine.runner.gate.release(1000)
        await busy.until_ended("r")
        assert busy.tokens["r"] == alone([1, 2, 3])
        async with asyncio.timeout(10):
            assert await busy.call.read() is grpc.aio.EOF
        with pytest.raises(grpc.aio.AioRpcError, match="the engine is draining") as caught:
            await Session(engine.stub).open()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        engine.servicer.accept()
        again = Session(engine.stub)
        assert (await again.open()).model.name == "fake"
        again.call.cancel()


async def test_closing_the_sending_side_ends_the_session():
    async with an_engine() as engine:
        session = Session(engine.stub)
        await session.open()
        await session.call.done_writing()
        async with asyncio.timeout(10):
            assert await session.call.read() is grpc.aio.EOF


async def test_generate_streams_one_request():
    async with an_engine() as engine:
        call = engine.stub.Generate(engine_pb2.GenerateRequest(request=a_message("r", [4, 5])))
        outputs = [response.output async for response in call]
        assert [token for output in outputs for token in output.token_ids] == alone([4, 5])
        assert outputs[-1].finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert outputs[-1].usage.completion_tokens == 8


async def test_cancelling_generate_frees_its_blocks():
    async with an_engine() as engine:
        engine.runner.gate = threading.Semaphore(2)
        call = engine.stub.Generate(engine_pb2.GenerateRequest(request=a_message("r", max_tokens=200)))
        assert await call.read() is not grpc.aio.EOF
        call.cancel()
        engine.runner.gate.release(1000)
        await engine.until_idle()


@pytest.mark.parametrize(
    ("request_message", "code"),
    [
        (a_message("r", [99]), grpc.StatusCode.INVALID_ARGUMENT),
        (a_message("r", [1] * 300), grpc.StatusCode.INVALID_ARGUMENT),
        (a_message("r", top_p=2.0), grpc.StatusCode.INVALID_ARGUMENT),
        (
            engine_pb2.EngineRequest(request_id="r", prompt_token_ids=[1], media=[common_pb2.MediaRef()]),
            grpc.StatusCode.UNIMPLEMENTED,
        ),
    ],
)
async def test_generate_refuses_with_a_status(request_message: engine_pb2.EngineRequest, code: grpc.StatusCode):
    async with an_engine() as engine:
        call = engine.stub.Generate(engine_pb2.GenerateRequest(request=request_message))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() == code
        assert isinstance(from_rpc_error(caught.value), TriptychError)


async def test_a_full_queue_is_refused_with_a_hint():
    async with an_engine(max_num_seqs=1, max_waiting=1) as engine:
        session = Session(engine.stub)
        await session.open()
        engine.runner.gate = threading.Semaphore(1)
        await session.add(a_message("running"))
        await session.read()
        await until(lambda: engine.runner.is_held)  # or the loop might take the next two before its step
        await session.add(a_message("waiting"), a_message("refused"))
        await until(lambda: engine.outbox.num_live_requests == 3)
        engine.runner.gate.release(1000)
        await session.until_ended("running", "waiting", "refused")
        error = from_request_error(session.last["refused"].error)
        assert isinstance(error, QueueFullError)
        assert error.retry_after_s == 1.0
        assert session.tokens["running"] == session.tokens["waiting"] == alone([1, 2, 3])


async def test_an_id_stays_taken_until_its_cancelled_request_is_gone():
    """Else the second request would get the first one's tokens, and its abort."""
    async with an_engine() as engine:
        engine.runner.gate = threading.Semaphore(1)
        first = engine.stub.Generate(engine_pb2.GenerateRequest(request=a_message("r", [1], max_tokens=100)))
        await first.read()
        first.cancel()
        await engine.until_a_command_waits()
        with pytest.raises(grpc.aio.AioRpcError, match="is in use"):
            await engine.stub.Generate(engine_pb2.GenerateRequest(request=a_message("r", [2]))).read()
        engine.runner.gate.release(1000)
        await engine.until_idle()
        again = engine.stub.Generate(engine_pb2.GenerateRequest(request=a_message("r", [2])))
        assert [token async for response in again for token in response.output.token_ids] == alone([2])


async def test_a_refusal_that_the_scheduler_makes_is_a_status_on_generate():
    async with an_engine(max_num_seqs=1, max_waiting=0) as engine:
        engine.runner.gate = threading.Semaphore(1)
        running = engine.stub.Generate(engine_pb2.GenerateRequest(request=a_message("running")))
        await running.read()
        refused = engine.stub.Generate(engine_pb2.GenerateRequest(request=a_message("r")))
        await until(lambda: engine.outbox.num_live_requests == 2)
        engine.runner.gate.release()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await refused.read()
        running.cancel()
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert from_rpc_error(caught.value).retry_after_s == 1.0


async def test_a_failing_step_ends_its_calls_with_internal_and_the_engine_serves_on():
    async with an_engine() as engine:
        engine.runner.fail_next_step = MemoryError("out of device memory")
        call = engine.stub.Generate(engine_pb2.GenerateRequest(request=a_message("r")))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        assert "out of device memory" not in (caught.value.details() or "")
        after = engine.stub.Generate(engine_pb2.GenerateRequest(request=a_message("r")))
        assert [t async for r in after for t in r.output.token_ids] == alone([1, 2, 3])


async def test_abort_by_id_from_another_call():
    async with an_engine() as engine:
        engine.runner.gate = threading.Semaphore(1)
        call = engine.stub.Generate(engine_pb2.GenerateRequest(request=a_message("r", max_tokens=200)))
        await call.read()
        abort = asyncio.create_task(_abort(engine, ["r", "unknown"]))
        await engine.until_a_command_waits()
        engine.runner.gate.release(1000)
        assert await abort == ["r"]
        outputs = []
        while (response := await call.read()) is not grpc.aio.EOF:
            outputs.append(response.output)
        assert outputs[-1].finish_reason == common_pb2.FINISH_REASON_ABORT


async def _abort(engine: Served, request_ids: list[str]) -> list[str]:
    response = await engine.stub.Abort(engine_pb2.AbortRequest(request_ids=request_ids))
    return list(response.aborted_request_ids)


async def test_watch_load_reports_now_and_when_it_changes():
    async with an_engine() as engine:
        call = engine.stub.WatchLoad(engine_pb2.WatchLoadRequest(interval_s=0.01))
        assert (await call.read()).load.num_generated_tokens == 0
        generate = engine.stub.Generate(engine_pb2.GenerateRequest(request=a_message("r")))
        assert [r async for r in generate]
        async with asyncio.timeout(10):
            while (await call.read()).load.num_generated_tokens < 8:
                pass
        call.cancel()


async def test_watch_load_refuses_a_senseless_interval():
    async with an_engine() as engine:
        with pytest.raises(grpc.aio.AioRpcError, match="interval_s must be in"):
            await engine.stub.WatchLoad(engine_pb2.WatchLoadRequest(interval_s=0)).read()


async def test_before_the_model_is_loaded_calls_are_unavailable():
    servicer = EngineServicer(Outbox(asyncio.get_running_loop(), lambda load: None))
    async with (
        serving(lambda server: engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server)) as address,
        open_channel(address) as channel,
    ):
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        for call in (stub.Session(), stub.Generate(engine_pb2.GenerateRequest(request=a_message("r")))):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert isinstance(from_rpc_error(caught.value), ServiceUnavailableError)
