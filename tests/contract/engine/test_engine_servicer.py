"""EngineService over real gRPC, on the real scheduler and step loop, with a runner that has no model."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest
from support.drivers.engine_service import NUM_BLOCKS, Served, a_message, alone, an_engine
from support.grpc_server import serving
from support.waiting import until
from triptych.errors import ServiceUnavailableError, TriptychError
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_engine.rpc.outbox import Outbox
from triptych_engine.rpc.servicer import EngineServicer


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


async def test_an_id_stays_taken_until_its_cancelled_request_is_gone():
    """Else the second request would get the first one's tokens, and its abort."""
    async with an_engine() as engine:
        engine.runner.gate = threading.Semaphore(1)
        first = engine.stub.Generate(engine_pb2.GenerateRequest(request=a_message("r", [1], max_tokens=100)))
        await first.read()
        # Else the loop could abort the request between two steps, and the id would be free.
        await until(lambda: engine.runner.is_held)
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
        # It may have been refused before anyone looks: between the first step and the one that waits.
        await until(lambda: engine.outbox.num_live_requests == 2 or refused.done())
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
    servicer = EngineServicer(Outbox(asyncio.get_running_loop(), lambda load: None), common_pb2.Instance)
    async with (
        serving(lambda server: engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server)) as address,
        open_channel(address) as channel,
    ):
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        for call in (stub.Session(), stub.Generate(engine_pb2.GenerateRequest(request=a_message("r")))):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert isinstance(from_rpc_error(caught.value), ServiceUnavailableError)


async def test_embed_is_not_served_yet():
    async with an_engine() as engine:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await engine.stub.Embed(engine_pb2.EngineServiceEmbedRequest())
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_it_tells_who_it_is():
    async with an_engine() as engine:
        described = await engine.stub.Describe(engine_pb2.EngineServiceDescribeRequest())
        assert (described.instance.id, described.model.name, described.load.num_blocks) == ("this engine", "fake", NUM_BLOCKS)
