"""EngineService.Session over real gRPC, on the real scheduler and step loop, with a runner that has no model."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import pytest
from support.drivers.engine_service import NUM_BLOCKS, Session, a_message, alone, an_engine
from support.fakes.runner import VOCAB_SIZE
from support.waiting import until
from triptych.errors import InternalError, InvalidRequestError, NeverFitsError, QueueFullError, ServiceUnavailableError
from triptych.status import from_request_error
from triptych.v1 import common_pb2, engine_pb2
from triptych_engine.rpc import servicer as servicer_module
from triptych_engine.scheduling.request import Request


async def test_the_first_message_tells_the_model():
    async with an_engine() as engine:
        session = Session(engine.stub)
        first = await session.open()
        assert first.instance.id == "this engine"
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


async def test_others_hear_of_a_request_while_a_step_runs():
    """Frontends choose by the load, and do not know of each other's requests."""
    async with an_engine() as engine:
        busy, idle = Session(engine.stub), Session(engine.stub)
        await busy.open()
        await idle.open()
        engine.runner.gate = threading.Semaphore(0)  # no step ends
        await busy.add(a_message("first"))
        await until(lambda: engine.core.load.num_running + engine.core.load.num_waiting == 1)
        await busy.add(a_message("second"), a_message("third"))
        async with asyncio.timeout(10):
            while True:
                load = (await idle.read()).load
                if load.num_running + load.num_waiting == 3:
                    break
        assert load.num_recent > 2
        engine.runner.gate.release(1000)
        await busy.until_ended("first", "second", "third")


async def test_a_refused_request_ends_alone_on_its_session():
    async with an_engine() as engine:
        session = Session(engine.stub)
        await session.open()
        engine.runner.gate = threading.Semaphore(0)  # nothing of what is good comes before the refusals
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
            while not (await idle.read()).going_away:  # it hears of the other's request, too
                pass
            assert await idle.call.read() is grpc.aio.EOF
        await busy.add(a_message("late"))
        engine.runner.gate.release(1000)
        await busy.until_ended("r", "late")
        assert busy.tokens["r"] == alone([1, 2, 3])
        assert isinstance(from_request_error(busy.last["late"].error), ServiceUnavailableError)
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


async def test_a_request_may_have_several_sequences():
    async with an_engine() as engine:
        session = Session(engine.stub)
        await session.open()
        message = a_message("r", [1, 2, 3])
        message.n = 3
        await session.add(message, a_message("other", [4]))
        names = ["r", "r 1", "r 2", "other"]
        await session.until_ended(*names)
        assert [session.tokens[name] for name in names] == [*([alone([1, 2, 3])] * 3), alone([4])]
        assert all(session.last[name].usage.prompt_tokens == 3 for name in names[:3])
        await engine.until_idle()


async def test_one_sequence_of_a_request_can_be_ended_alone():
    async with an_engine() as engine:
        session = Session(engine.stub)
        await session.open()
        engine.runner.gate = threading.Semaphore(1)
        message = a_message("r", max_tokens=20)
        message.n = 2
        await session.add(message)
        await session.read()
        await until(lambda: engine.runner.is_held)  # else the command may come between two steps
        one = engine_pb2.SequenceId(request_id="r", index=1)
        await session.call.write(engine_pb2.SessionRequest(abort_sequences=[one]))
        await engine.until_a_command_waits()
        engine.runner.gate.release(1000)
        await session.until_ended("r", "r 1")
        assert session.last["r 1"].finish_reason == common_pb2.FINISH_REASON_ABORT
        assert session.last["r"].finish_reason == common_pb2.FINISH_REASON_LENGTH
        await engine.until_idle()


async def test_a_refused_request_has_an_output_for_each_of_its_sequences():
    async with an_engine() as engine:
        session = Session(engine.stub)
        await session.open()
        message = a_message("r", [1, VOCAB_SIZE])
        message.n = 3
        await session.add(message)
        await session.until_ended("r", "r 1", "r 2")
        assert {last.finish_reason for last in session.last.values()} == {common_pb2.FINISH_REASON_ERROR}


@pytest.mark.parametrize("n", [0, 129])
async def test_how_many_sequences_there_may_be(n: int):
    async with an_engine() as engine:
        message = a_message("r")
        message.n = n
        with pytest.raises(grpc.aio.AioRpcError, match=r"n must be in \[1, 128\]"):
            await engine.stub.Generate(engine_pb2.GenerateRequest(request=message)).read()


async def test_an_error_of_our_own_about_one_request_ends_that_request_alone(monkeypatch: pytest.MonkeyPatch):
    async with an_engine() as engine:
        convert = servicer_module.to_requests

        def to_requests(message: engine_pb2.EngineRequest, *limits: Any) -> list[Request]:
            if message.request_id == "poison":
                raise ZeroDivisionError
            return convert(message, *limits)

        monkeypatch.setattr(servicer_module, "to_requests", to_requests)
        session = Session(engine.stub)
        await session.open()
        await session.add(a_message("poison"), a_message("fine"))
        await session.until_ended("poison", "fine")
        assert isinstance(from_request_error(session.last["poison"].error), InternalError)
        assert session.tokens["fine"] == alone([1, 2, 3])
