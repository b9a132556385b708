"""KV events of a running engine: to subscribers over ZeroMQ, and to SMG over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import zmq
import zmq.asyncio
from smg_grpc_proto.generated import common_pb2 as smg_pb2
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as vllm_grpc
from support import kv_events as vllm
from support import media_stack
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.drivers.engine_service import a_message, an_engine
from support.waiting import until
from triptych.errors import StartupError
from triptych.v1 import common_pb2, control_pb2, control_pb2_grpc, engine_pb2, engine_pb2_grpc
from triptych_common.model.blocks import hash_block, root_hash
from triptych_common.rpc.channels import open_channel
from triptych_engine.kv_events.batches import external_hash
from triptych_engine.kv_events.publisher import KVEventPublisher


async def generate(stub: engine_pb2_grpc.EngineServiceStub, name: str, prompt: list[int], **sampling: Any) -> list[int]:
    """The output of a request."""
    outputs = stub.Generate(engine_pb2.GenerateRequest(request=a_message(name, prompt, **sampling)))
    return [token async for one in outputs for token in one.output.token_ids]


@asynccontextmanager
async def replayed(address: str) -> AsyncIterator[Any]:
    """A function that returns all batches from a number on."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(address)

    async def ask(first: int = 0) -> list[vllm.KVEventBatch]:
        await socket.send_multipart([b"", first.to_bytes(8, "big")])
        batches = []
        async with asyncio.timeout(10):
            while (answer := await socket.recv_multipart())[2] != b"\xff" * 8:
                assert answer[:3] == [b"", b"", (first + len(batches)).to_bytes(8, "big")]
                batches.append(vllm.decode(answer[3]))
        return batches

    try:
        yield ask
    finally:
        context.destroy(linger=0)


async def test_a_receiver_holds_what_the_engine_holds(tmp_path: Path) -> None:
    """Requests, a full cache, a reset, a sleep: on the real step loop, which has 64 blocks of 4 tokens."""
    async with an_engine(with_kv_events=True) as engine, replayed(f"ipc://{tmp_path}/replay") as batches_from:
        publisher = KVEventPublisher(engine.kv_events, f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay")
        receiver, num_taken = vllm.Receiver(), 0
        pool = engine.metrics.scheduler.kv_cache.pool

        async def compare() -> list[Any]:
            nonlocal num_taken
            held = await asyncio.wrap_future(engine.core.call(lambda: set(pool._block_of)))
            batches = await batches_from(num_taken)
            num_taken += len(batches)
            for batch in batches:
                receiver.take(batch)
            assert receiver.held == set(map(external_hash, held))
            return [event for batch in batches for event in batch.events]

        try:
            await generate(engine.stub, "first", [*range(1, 10)])
            (prompt, *rest) = await compare()
            parent, names = root_hash(""), []
            for start in (0, 4):
                parent = hash_block(parent, prompt.token_ids[start : start + 4])
                names.append(external_hash(parent))
            assert (prompt.block_hashes, prompt.token_ids, prompt.parent_block_hash) == (names, [*range(1, 9)], None)
            assert [(event.block_size, len(event.block_hashes)) for event in rest] == [(4, 1)] * 2
            assert rest[0].parent_block_hash == names[-1]
            await generate(engine.stub, "again", [*range(1, 10)])
            assert await compare() == []
            await asyncio.gather(*(generate(engine.stub, f"r{n}", [n, 1, 2], max_tokens=60) for n in range(8)))
            await engine.until_idle()
            assert {type(event) for event in await compare()} == {vllm.BlockStored, vllm.BlockRemoved}
            assert await asyncio.wrap_future(engine.core.reset_prefix_cache()) > 50
            assert await compare() == [vllm.AllBlocksCleared()]
            await generate(engine.stub, "last", [*range(1, 10)])
            assert len(await compare()) == 3
            await asyncio.wrap_future(engine.core.sleep())
            assert await compare() == [vllm.AllBlocksCleared()]
            assert receiver.held == set()
        finally:
            await publisher.close()


async def test_an_engine_without_listeners_passes_nothing_on() -> None:
    async with an_engine() as engine:
        await generate(engine.stub, "r", [*range(1, 10)])
        await asyncio.wrap_future(engine.core.reset_prefix_cache())
        await engine.core_turn()
        assert engine.kv_events.num_batches == 0
        assert engine.metrics.scheduler.kv_cache.pool._events is None


@pytest.mark.model
async def test_a_whole_engine_publishes_and_replays_and_tells_smg_the_same(tmp_path: Path) -> None:
    path = save_random_model(tmp_path / "model", a_tiny_llama_config())
    settings = {
        "kv_events": f"ipc://{tmp_path}/events", "kv_events_replay": f"ipc://{tmp_path}/replay", "vllm_grpc": True,
    }  # fmt: skip
    context = zmq.asyncio.Context()
    async with (
        media_stack.an_engine(path, **settings) as engine,
        open_channel(f"127.0.0.1:{engine._server.port}") as channel,
        open_channel(f"127.0.0.1:{engine._server.control_port}") as control_channel,
        replayed(f"ipc://{tmp_path}/replay") as batches_from,
    ):
        stub, control = engine_pb2_grpc.EngineServiceStub(channel), control_pb2_grpc.ControlServiceStub(control_channel)
        events = vllm_grpc.VllmEngineStub(channel).SubscribeKvEvents(smg_pb2.SubscribeKvEventsRequest())
        await events.initial_metadata()  # comes before the first event
        subscriber = context.socket(zmq.SUB)
        subscriber.subscribe(b"")
        subscriber.connect(f"ipc://{tmp_path}/events")
        number = 0
        while not await subscriber.poll(20):
            number += 1
            await generate(stub, f"r{number}", [number] * 20, max_tokens=1)
        (topic, sequence, payload) = await subscriber.recv_multipart()
        batches = await batches_from(0)
        assert (topic, vllm.decode(payload)) == (b"", batches[int.from_bytes(sequence, "big")])
        for expected, batch in enumerate(batches):
            message = await events.read()
            assert message.sequence_number == expected
            assert message.timestamp == batch.ts
            ours = [block for event in message.events for block in event.stored.blocks]
            assert [block.block_hash % 2**64 for block in ours] == [name for event in batch.events for name in event.block_hashes]
            assert [token for block in ours for token in block.token_ids] == batch.events[0].token_ids
        await control.ResetCache(control_pb2.ResetCacheRequest())
        message = await events.read()
        assert [event.WhichOneof("data") for event in message.events] == ["cleared"]
        assert (await batches_from(message.sequence_number))[0].events == [vllm.AllBlocksCleared()]
        assert engine.state == common_pb2.SERVER_STATE_SERVING
        with pytest.raises(StartupError, match="kv_events: cannot listen on"):
            async with media_stack.an_engine(path, kv_events=f"tcp://*:{_port_of(subscriber)}"):
                pass
    context.destroy(linger=0)


def _port_of(socket: zmq.asyncio.Socket) -> int:
    """A port that is taken from now on."""
    return socket.bind_to_random_port("tcp://*")


async def test_a_subscription_that_cannot_go_on_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is not known; then a subscriber that reads nothing."""
    path = save_random_model(tmp_path / "model", a_tiny_llama_config())
    async with (
        media_stack.an_engine(path, vllm_grpc=True) as engine,
        open_channel(f"127.0.0.1:{engine._server.port}") as channel,
    ):
        subscribe = vllm_grpc.VllmEngineStub(channel).SubscribeKvEvents
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await subscribe(smg_pb2.SubscribeKvEventsRequest(start_sequence_number=7)).read()
        assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
        monkeypatch.setattr("triptych_engine.rpc.vllm.kv_events._MAX_WAITING", 0)
        call = subscribe(smg_pb2.SubscribeKvEventsRequest())
        await call.initial_metadata()
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        await generate(stub, "r", [1] * 20, max_tokens=1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.DATA_LOSS
        monkeypatch.undo()
        call = subscribe(smg_pb2.SubscribeKvEventsRequest())
        message = await call.read()
        assert (message.snapshot.count, message.snapshot.blocks, message.sequence_number) == (1, 1, 0)
        assert engine._vllm is not None
        call.cancel()
        await until(lambda: not engine._vllm._kv_events._subscriptions)
