"""The mock's engine: who ends whose requests, and what is left of them."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from support.mock import mock_server, script
from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc, generation_pb2, preprocess_pb2, preprocess_pb2_grpc

STALL = script(fault={"stall": True})
ABORT = common_pb2.FINISH_REASON_ABORT


class Engine:
    """The mock's engine, and its tokenizer."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = engine_pb2_grpc.EngineServiceStub(channel)
        self._preprocess = preprocess_pb2_grpc.PreprocessServiceStub(channel)

    async def request(self, request_id: str, text: str, n: int = 1) -> engine_pb2.EngineRequest:
        prompt = preprocess_pb2.PreprocessRequest(complete=generation_pb2.CompleteRequest(text=text))
        token_ids = (await self._preprocess.Preprocess(prompt)).token_ids
        return engine_pb2.EngineRequest(request_id=request_id, prompt_token_ids=token_ids, n=n)

    async def num_running(self) -> int:
        return (await self.stub.Describe(engine_pb2.EngineServiceDescribeRequest())).load.num_running

    async def session(self, *requests: engine_pb2.EngineRequest, abort: list[str] | None = None) -> grpc.aio.StreamStreamCall:
        session = self.stub.Session()
        await session.read()
        await session.write(engine_pb2.SessionRequest(add=requests, abort=abort))
        return session


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with mock_server() as mock, grpc.aio.insecure_channel(mock.address) as channel:
        yield Engine(channel)


async def _nothing_runs(engine: Engine) -> None:
    async with asyncio.timeout(10):
        while await engine.num_running():  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)


async def test_a_slow_reader_that_leaves_leaves_nothing(engine: Engine) -> None:
    large = "x" * 100_000  # is in each output, so that the connection is soon full
    request = await engine.request(large, script(numTokens=1000), n=16)
    call = engine.stub.Generate(engine_pb2.GenerateRequest(request=request))
    await call.read()

    async def is_held_up() -> bool:
        before = (await engine.stub.Describe(engine_pb2.EngineServiceDescribeRequest())).load.num_generated_tokens
        await asyncio.sleep(0.2)
        return (await engine.stub.Describe(engine_pb2.EngineServiceDescribeRequest())).load.num_generated_tokens == before

    async with asyncio.timeout(20):
        while not await is_held_up():
            pass
    call.cancel()
    await _nothing_runs(engine)


async def test_a_session_ends_its_own_requests_only(engine: Engine) -> None:
    request = await engine.request("a", STALL)
    call = engine.stub.Generate(engine_pb2.GenerateRequest(request=request))
    reading = asyncio.ensure_future(call.read())
    async with asyncio.timeout(10):
        while not await engine.num_running():  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)
    other = await engine.session(request, await engine.request("b", STALL))
    refused = (await other.read()).outputs[0]
    assert (refused.request_id, refused.error.reason) == ("a", "DUPLICATE_REQUEST")
    assert await engine.num_running() == 2
    await other.done_writing()
    assert await other.read() is grpc.aio.EOF  # no outputs of what was aborted with the stream
    assert await engine.num_running() == 1
    assert not reading.done()
    call.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def test_an_abort_applies_to_the_adds_of_its_message(engine: Engine) -> None:
    session = await engine.session(await engine.request("a", STALL), abort=["a"])
    async with asyncio.timeout(5):
        output = (await session.read()).outputs[0]
    assert (output.request_id, output.finish_reason) == ("a", ABORT)
    await _nothing_runs(engine)
    session.cancel()


async def test_a_refused_number_of_sequences_gets_no_flood_of_errors(engine: Engine) -> None:
    session = await engine.session(await engine.request("a", STALL, n=2**32 - 1))
    await session.done_writing()
    num_outputs = 0
    async with asyncio.timeout(10):
        while (message := await session.read()) is not grpc.aio.EOF:
            num_outputs += len(message.outputs)
    assert 1 <= num_outputs <= 128
