"""Requests with an adapter wait until it is loaded, over real gRPC; the test says when that ends."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from support.drivers.engine_service import MODEL, Served, a_message, alone, an_engine, an_open_session
from support.waiting import until
from triptych.errors import InvalidRequestError, ModelNotFoundError
from triptych.status import from_request_error
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.model.blocks import adapter_salt
from triptych_common.rpc.principal import Principal
from triptych_engine.rpc.convert import to_requests

DIGEST = "ab" * 32


def adapted(request_id: str, n: int = 1) -> engine_pb2.EngineRequest:
    message = a_message(request_id)
    message.lora, message.n = "one", n
    return message


async def loading(engine: Served) -> Future[object]:
    await until(lambda: "one" in engine.runner.loras)
    return engine.runner.loras["one"]


async def test_a_request_starts_when_its_adapter_is_loaded_and_others_start_before():
    async with an_engine() as engine:
        told: list[tuple[str, str]] = []
        engine.servicer.on_lora = lambda name, digest: told.append((name, digest))
        session = await an_open_session(engine)
        await session.add(adapted("waits", n=2), a_message("free"))
        await session.until_ended("free")
        assert not session.tokens.get("waits")
        (await loading(engine)).set_result(SimpleNamespace(digest=DIGEST))
        await session.until_ended("waits", "waits 1")
        assert session.tokens["waits"] == session.tokens["waits 1"] == alone([1, 2, 3])
        await session.add(adapted("again"))
        await session.until_ended("again")
        assert told == [("one", DIGEST)] * 2
        await engine.until_idle()


async def test_an_adapter_that_cannot_be_used_ends_its_request_alone():
    async with an_engine() as engine:
        session = await an_open_session(engine)
        await session.add(adapted("bad", n=2))
        (await loading(engine)).set_exception(InvalidRequestError("it has another rank", field="lora"))
        await session.until_ended("bad", "bad 1")
        for last in session.last.values():
            assert from_request_error(last.error).field == "lora"
        await session.add(a_message("good"))
        await session.until_ended("good")
        await engine.until_idle()


async def test_a_failure_of_our_own_is_an_error_of_the_request(caplog: pytest.LogCaptureFixture):
    async with an_engine() as engine:
        session = await an_open_session(engine)
        await session.add(adapted("r"))
        (await loading(engine)).set_exception(MemoryError())
        await session.until_ended("r")
        assert "the adapter could not be loaded (MemoryError)" in session.last["r"].error.message
        assert "a request could not be prepared" in caplog.text
        await engine.until_idle()


async def test_what_waits_can_be_aborted():
    async with an_engine() as engine:
        session = await an_open_session(engine)
        await session.add(adapted("r"))
        future = await loading(engine)
        await session.call.write(engine_pb2.SessionRequest(abort=["r"]))
        await session.until_ended("r")
        assert session.last["r"].finish_reason == common_pb2.FINISH_REASON_ABORT
        future.set_result(SimpleNamespace(digest=DIGEST))
        await engine.until_idle()
        assert engine.runner.num_steps == 0


async def test_a_constraint_and_an_adapter_are_both_waited_for():
    async with an_engine() as engine:
        session = await an_open_session(engine)
        message = adapted("r")
        message.constraint.regex = "a+"
        await session.add(message)
        (await loading(engine)).set_result(SimpleNamespace(digest=DIGEST))
        await session.add(a_message("free"))
        await session.until_ended("free")
        assert "r" not in session.last
        (compilation,) = engine.runner.compilations.values()
        compilation.set_result(None)
        await session.until_ended("r")
        await engine.until_idle()


async def test_sessions_are_told_that_the_model_has_changed():
    async with an_engine() as engine:
        sessions = [await an_open_session(engine) for _ in range(2)]
        engine.servicer.tell_model()
        for session in sessions:
            message = await session.read()
            assert message.model.name == MODEL.name
        await sessions[0].add(a_message("r"))
        while "r" not in sessions[0].last:
            assert not (await sessions[0].read()).HasField("model")


def test_an_engine_without_adapters_knows_none():
    model = common_pb2.ModelInfo(name="m", max_model_len=64, vocab_size=64)
    with pytest.raises(ModelNotFoundError, match="without adapters"):
        to_requests(adapted("r"), model, 64)


def test_no_client_can_choose_the_salt_of_an_adapter():
    scoped = [Principal(tenant).scoped_salt(salt) for tenant in ("", "a", "lora") for salt in ("", f"lora:{DIGEST}:", "b")]
    salts = {adapter_salt(salt, digest) for salt in scoped for digest in ("", DIGEST, "cd" * 32)}
    assert len(salts) == 27
