"""Requests with a constraint wait for its compilation, over real gRPC; the test says when that ends."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path

import grpc
import pytest
from support import media_stack
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.builders.tokenizer import byte_level_tokenizer
from support.drivers.engine_service import Served, a_message, alone, an_engine, an_open_session
from support.fakes.runner import FakeRunner
from support.waiting import until
from triptych.errors import InvalidRequestError
from triptych.status import from_request_error, from_rpc_error
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.constraints.spec import ConstraintSpec
from triptych_engine import startup

SPEC = ConstraintSpec("regex", "a+")


def constrained(request_id: str, n: int = 1) -> engine_pb2.EngineRequest:
    message = a_message(request_id)
    message.constraint.regex = SPEC.text
    message.n = n
    return message


async def compilation(engine: Served) -> Future[object]:
    await until(lambda: SPEC in engine.runner.compilations)
    return engine.runner.compilations[SPEC]


async def test_a_request_starts_when_its_constraint_is_compiled_and_others_start_before():
    async with an_engine() as engine:
        session = await an_open_session(engine)
        await session.add(constrained("waits", n=2), a_message("free"))
        await session.until_ended("free")
        assert not session.tokens.get("waits")
        (await compilation(engine)).set_result(None)
        await session.until_ended("waits", "waits 1")
        assert session.tokens["waits"] == session.tokens["waits 1"] == alone([1, 2, 3])
        await session.add(constrained("again"))
        await session.until_ended("again")
        await engine.until_idle()


async def test_a_constraint_that_does_not_compile_ends_its_request_alone():
    async with an_engine() as engine:
        session = await an_open_session(engine)
        await session.add(constrained("bad", n=2))
        error = InvalidRequestError("constraint.regex cannot be honoured", field="constraint.regex")
        (await compilation(engine)).set_exception(error)
        await session.until_ended("bad", "bad 1")
        for last in session.last.values():
            assert last.finish_reason == common_pb2.FINISH_REASON_ERROR
            assert from_request_error(last.error).field == "constraint.regex"
        await session.add(a_message("good"))
        await session.until_ended("good")
        await engine.until_idle()


async def test_what_waits_can_be_aborted_as_a_whole_and_in_part():
    async with an_engine() as engine:
        session = await an_open_session(engine)
        await session.add(constrained("whole"), constrained("part", n=2))
        future = await compilation(engine)
        one = engine_pb2.SequenceId(request_id="part", index=1)
        await session.call.write(engine_pb2.SessionRequest(abort=["whole"], abort_sequences=[one]))
        await session.until_ended("whole", "part 1")
        future.set_result(None)
        await session.until_ended("part")
        assert session.last["whole"].finish_reason == session.last["part 1"].finish_reason == common_pb2.FINISH_REASON_ABORT
        assert session.last["part"].finish_reason == common_pb2.FINISH_REASON_LENGTH
        await engine.until_idle()


async def test_the_abort_call_names_what_waited():
    async with an_engine() as engine:
        session = await an_open_session(engine)
        await session.add(constrained("r"))
        await compilation(engine)
        response = await engine.stub.Abort(engine_pb2.AbortRequest(request_ids=["r", "unknown"]))
        assert response.aborted_request_ids == ["r"]
        await session.until_ended("r")
        await engine.until_idle()


async def test_a_lost_session_leaves_nothing_behind():
    async with an_engine() as engine:
        session = await an_open_session(engine)
        await session.add(constrained("r"))
        future = await compilation(engine)
        session.call.cancel()
        await engine.outbox.wait_idle()
        future.set_result(None)
        await asyncio.sleep(0.05)
        await engine.until_idle()
        assert engine.runner.num_steps == 0


async def test_a_session_that_goes_away_ends_after_what_waits():
    async with an_engine() as engine:
        session = await an_open_session(engine)
        await session.add(constrained("r"))
        future = await compilation(engine)
        engine.servicer.refuse("the engine is draining")
        assert engine.outbox.num_live_requests == 1, "a drain waits for it"
        future.set_result(None)
        await session.until_ended("r")
        assert session.last["r"].finish_reason == common_pb2.FINISH_REASON_LENGTH


async def test_generate_refuses_with_a_status():
    async with an_engine() as engine:
        call = engine.stub.Generate(engine_pb2.GenerateRequest(request=constrained("r")))
        reading = asyncio.create_task(call.read())
        (await compilation(engine)).set_exception(InvalidRequestError("at #/a", field="constraint.regex"))
        with pytest.raises(grpc.aio.AioRpcError, match="at #/a") as caught:
            await reading
        assert (caught.value.code(), from_rpc_error(caught.value).field) == (grpc.StatusCode.INVALID_ARGUMENT, "constraint.regex")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer of constraints is loaded without a pause."""
    monkeypatch.setattr(startup, "_FIRST_REQUESTS_S", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_the_tokenizer_of_constraints_is_loaded_before_the_first_constraint(tmp_path: Path):
    save_random_model(tmp_path, a_tiny_llama_config(vocab_size=520))
    byte_level_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    async with media_stack.an_engine(tmp_path) as service:
        await until(lambda: service._loaded()._executor.runner.constraints._tokenizer is not None)


@pytest.mark.usefixtures("at_once")
async def test_it_waits_until_nothing_runs_and_the_engine_is_awake():
    runner, idle, serves = FakeRunner(), asyncio.Event(), asyncio.Event()

    async def wait_idle() -> None:
        await idle.wait()

    warming = asyncio.create_task(startup.warm_up_constraints(runner, wait_idle, serves.is_set))
    await asyncio.sleep(0.05)
    assert not runner.compilations, "no step can begin while it is loaded"
    idle.set()
    await asyncio.sleep(0.05)
    assert not runner.compilations, "it sleeps, to need no memory"
    serves.set()
    await until(lambda: runner.compilations)
    next(iter(runner.compilations.values())).set_result(None)
    await warming


@pytest.mark.usefixtures("at_once")
async def test_an_engine_without_a_tokenizer_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_random_model(tmp_path, a_tiny_llama_config())
    async with media_stack.an_engine(tmp_path) as service:
        await until(lambda: "constraints cannot be used" in caplog.text)
        assert service.num_live_requests == 0
