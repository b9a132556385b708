"""EngineService.Embed over gRPC, with a tiny encoder and the real step loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from support import media_stack
from support.builders.pooling import an_embedder
from support.drivers.engine_service import an_engine
from support.drivers.pooling import PoolingDriver
from support.grpc_server import serving
from support.waiting import until
from triptych.errors import ContextLengthError, InvalidRequestError, UnimplementedError
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.tensors import to_numpy
from triptych_engine.core import EngineCore
from triptych_engine.rpc.outbox import Outbox
from triptych_engine.rpc.servicer import EngineServicer

Request = engine_pb2.EngineRequest


@asynccontextmanager
async def an_encoder(path: Path) -> AsyncIterator[tuple[engine_pb2_grpc.EngineServiceStub, PoolingDriver, Outbox]]:
    driver = PoolingDriver(an_embedder(path, "bert"), max_waiting=300)
    outbox = Outbox(asyncio.get_running_loop(), lambda load: servicer.on_load(load))
    servicer = EngineServicer(outbox, lambda: common_pb2.Instance(id="this engine"))
    core = EngineCore(driver.scheduler, driver.executor, outbox.publish)
    core.start()
    driver.info.vocab_size = driver.executor.runner.vocab_size
    servicer.attach(core, driver.info, 1 << 20, pooling=driver.pooling)
    try:
        async with (
            serving(lambda server: engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server)) as address,
            open_channel(address) as channel,
        ):
            yield engine_pb2_grpc.EngineServiceStub(channel), driver, outbox
    finally:
        await asyncio.to_thread(core.stop)


def a_call(*prompts: list[int], **pooling: object) -> engine_pb2.EngineServiceEmbedRequest:
    requests = [Request(request_id=f"r{index}", prompt_token_ids=prompt) for index, prompt in enumerate(prompts)]
    params = common_pb2.PoolingParams(**pooling)  # type: ignore[arg-type]
    return engine_pb2.EngineServiceEmbedRequest(requests=requests, pooling=params)


async def test_answers_are_in_the_order_of_the_requests(tmp_path: Path) -> None:
    prompts = [[2, *range(5, 5 + length), 3] for length in (20, 1, 7, 20)]
    async with an_encoder(tmp_path) as (stub, _, outbox):
        answer = await stub.Embed(a_call(*prompts))
        alone = [await stub.Embed(a_call(prompt)) for prompt in prompts]
        tokens = await stub.Embed(a_call(*prompts, task=common_pb2.TASK_TOKEN_EMBED))
        assert outbox.num_live_requests == 0
    assert answer.usage.prompt_tokens == sum(map(len, prompts))
    for one, other in zip(answer.embeddings, alone, strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other.embeddings[0]), atol=1e-6)
    assert [list(one.shape) for one in tokens.embeddings] == [[len(prompt), 32] for prompt in prompts]


@pytest.mark.parametrize(
    ("call", "error", "field"),
    [
        (a_call(), InvalidRequestError, "requests"),
        (a_call([2], []), InvalidRequestError, "requests[1].prompt_token_ids"),
        (a_call([2], [2] * 41), ContextLengthError, "requests[1].prompt_token_ids"),
        (a_call([999]), InvalidRequestError, "requests[0].prompt_token_ids"),
        (a_call([2], dimensions=5), InvalidRequestError, "dimensions"),
        (a_call([2], activation=False), InvalidRequestError, "activation"),
        (a_call([2], task=common_pb2.TASK_CLASSIFY), UnimplementedError, "task"),
    ],
)
async def test_bad_calls_are_named(
    tmp_path: Path, call: engine_pb2.EngineServiceEmbedRequest, error: type[Exception], field: str
) -> None:
    async with an_encoder(tmp_path) as (stub, _, outbox):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await stub.Embed(call)
        assert outbox.num_live_requests == 0
    found = from_rpc_error(failure.value)
    assert isinstance(found, error)
    assert found.field == field


async def test_fields_of_generation_are_refused(tmp_path: Path) -> None:
    call = a_call([2])
    call.requests[0].sampling.max_tokens = 3
    async with an_encoder(tmp_path) as (stub, _, _):
        with pytest.raises(grpc.aio.AioRpcError, match="sampling is not for requests that generate nothing"):
            await stub.Embed(call)
        with pytest.raises(grpc.aio.AioRpcError, match="this engine generates no text"):
            await stub.Generate(engine_pb2.GenerateRequest(request=call.requests[0])).read()


async def test_an_engine_that_generates_refuses() -> None:
    async with an_engine() as served:
        with pytest.raises(grpc.aio.AioRpcError, match="--task embed") as failure:
            await served.stub.Embed(a_call([2]))
        assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_values_that_are_no_numbers_fail_their_call_alone(tmp_path: Path) -> None:
    async with an_encoder(tmp_path) as (stub, driver, outbox):
        driver.executor.runner._model.base.get_input_embeddings().weight[9] = float("nan")  # type: ignore[union-attr]
        with pytest.raises(grpc.aio.AioRpcError, match=r"requests\[1\]: the model computes values that are no finite numbers"):
            await stub.Embed(a_call([2, 3], [2, 9, 3]))
        assert np.isfinite(to_numpy((await stub.Embed(a_call([2, 3]))).embeddings[0])).all()
        async with asyncio.timeout(10):
            await outbox.wait_idle()


async def test_a_cancelled_call_leaves_nothing_behind(tmp_path: Path) -> None:
    async with an_encoder(tmp_path) as (stub, driver, outbox):
        call = stub.Embed(a_call(*[[2, *[7] * 30, 3]] * 250))
        await until(lambda: outbox.num_live_requests > 0)
        call.cancel()
        async with asyncio.timeout(10):
            await outbox.wait_idle()
        await stub.Embed(a_call([2, 3]))
        assert driver.scheduler.num_running == driver.scheduler.num_waiting == 0


async def test_a_drain_lets_a_call_in_flight_end_and_refuses_new_ones(tmp_path: Path) -> None:
    prompts = [[2, *[7] * 30, 3]] * 250
    settings = {"max_num_seqs": 1, "max_num_batched_tokens": 64}
    async with (
        media_stack.an_engine(an_embedder(tmp_path, "bert"), **settings) as service,
        open_channel(f"127.0.0.1:{service._server.port}") as channel,
    ):
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        call = asyncio.ensure_future(stub.Embed(a_call(*prompts)))
        await until(lambda: service.num_live_requests > 0)
        assert not await service.drain(0)
        with pytest.raises(grpc.aio.AioRpcError, match="draining") as refused:
            await stub.Embed(a_call([2, 3]))
        assert await service.drain(60)
        assert len((await call).embeddings) == len(prompts)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_full_queue_ends_the_call(tmp_path: Path) -> None:
    async with an_encoder(tmp_path) as (stub, _, outbox):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await stub.Embed(a_call(*[[2, *[7] * 30, 3]] * 4000))
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with asyncio.timeout(10):
            await outbox.wait_idle()
