"""KV events over real ZeroMQ sockets: what subscribers get, what they can ask for again, and that none of them slows the engine."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq
import zmq.asyncio
from support import kv_events as vllm
from support.waiting import until
from triptych.errors import StartupError
from triptych_engine.extras import new_publisher
from triptych_engine.kv_events import publisher as module
from triptych_engine.kv_events.batches import KVEventBatches
from triptych_engine.kv_events.publisher import KVEventPublisher
from triptych_engine.scheduling.cache.block_pool import AllBlocksCleared, BlockStored
from triptych_engine.settings import EngineSettings


@asynccontextmanager
async def publishing(folder: Path, topic: str = "") -> AsyncIterator[KVEventBatches]:
    batches = KVEventBatches(asyncio.get_running_loop())
    publisher = KVEventPublisher(batches, f"ipc://{folder}/events", f"ipc://{folder}/replay", topic)
    try:
        yield batches
    finally:
        await publisher.close()


@pytest.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


async def subscribed(context: zmq.asyncio.Context, folder: Path, batches: KVEventBatches, topic: bytes = b"") -> zmq.asyncio.Socket:
    """A subscriber that gets all that follows: ZeroMQ says nowhere when a subscription has arrived."""
    socket = context.socket(zmq.SUB)
    socket.subscribe(topic)
    socket.connect(f"ipc://{folder}/events")
    while not await socket.poll(10):
        publish(batches)
    while await socket.poll(10):
        await socket.recv_multipart()
    return socket


def publish(batches: KVEventBatches, num_blocks: int = 1) -> None:
    hashes = [index.to_bytes(32, "big") for index in range(num_blocks)]
    batches._deliver(1.5, [BlockStored(None, "", hashes, [*range(num_blocks * 16)], [()] * num_blocks)])


async def received(socket: zmq.asyncio.Socket) -> list[bytes]:
    async with asyncio.timeout(10):
        return await socket.recv_multipart()


async def replayed(socket: zmq.asyncio.Socket, first: int) -> list[tuple[bytes, int, bytes]]:
    """Topic, number and payload of each batch of an answer."""
    await socket.send_multipart([b"", first.to_bytes(8, "big")])
    answers = []
    while True:
        delimiter, topic, number, payload = await received(socket)
        assert delimiter == b""
        if number == b"\xff" * 8:
            assert (topic, payload) == (b"", b"")
            return answers
        answers.append((topic, int.from_bytes(number, "big"), payload))


async def test_vllms_types_read_what_is_published(tmp_path: Path, context: zmq.asyncio.Context) -> None:
    async with publishing(tmp_path, "kv@10.0.0.1@m") as batches:
        socket = await subscribed(context, tmp_path, batches, b"kv@")
        stored = BlockStored(b"\xff" * 32, "salt", [b"\x00" * 31 + b"\x07", b"\xfe" * 32], [1, 2, 3, 4], [(("cat", 1),), ()])
        number = batches.num_batches
        before_s = time.time()
        batches.publish([stored, AllBlocksCleared()])
        topic, frame, payload = await received(socket)
        assert (topic, frame) == (b"kv@10.0.0.1@m", number.to_bytes(8, "big"))
        batch = vllm.decode(payload)
        assert before_s <= batch.ts <= time.time()
        assert batch.data_parallel_rank == 0
        one, cleared = batch.events
        assert one == vllm.BlockStored(
            block_hashes=[7, 0xFEFEFEFEFEFEFEFE],
            parent_block_hash=2**64 - 1,
            token_ids=[1, 2, 3, 4],
            block_size=2,
            lora_id=None,
            medium="GPU",
            lora_name=None,
            extra_keys=[(["cat", 1],), None],  # type: ignore[list-item]
        )
        assert isinstance(cleared, vllm.AllBlocksCleared)


async def test_a_replay_has_what_was_missed(tmp_path: Path, context: zmq.asyncio.Context) -> None:
    async with publishing(tmp_path, "topic") as batches:
        for number in range(250):
            publish(batches, number % 7 + 1)
        socket = context.socket(zmq.DEALER)
        socket.connect(f"ipc://{tmp_path}/replay")
        answers = await replayed(socket, 17)
        assert [(topic, number) for topic, number, _ in answers] == [(b"topic", number) for number in range(17, 250)]
        assert all(len(vllm.decode(payload).events[0].block_hashes) == number % 7 + 1 for _, number, payload in answers)
        assert await replayed(socket, 250) == []
        await socket.send_multipart([b"", b"short"])
        assert [number for _, number, _ in await replayed(socket, 249)] == [249]
        assert batches.num_replays == 3


@pytest.mark.parametrize(("limit", "value"), [("_MAX_KEPT", 10), ("_MAX_KEPT_BYTES", 1000)])
async def test_what_is_kept_for_replays_is_bounded(
    tmp_path: Path, context: zmq.asyncio.Context, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(module, limit, value)
    async with publishing(tmp_path) as batches:
        for _ in range(50):
            publish(batches)
        socket = context.socket(zmq.DEALER)
        socket.connect(f"ipc://{tmp_path}/replay")
        answers = await replayed(socket, 0)
        assert [number for _, number, _ in answers] == [*range(50 - len(answers), 50)]
        num_bytes = len(answers[0][2])
        assert len(answers) == (value if limit == "_MAX_KEPT" else value // num_bytes)


async def test_a_subscriber_that_reads_nothing_loses_batches_and_others_do_not(
    tmp_path: Path, context: zmq.asyncio.Context
) -> None:
    async with publishing(tmp_path) as batches:
        stuck = context.socket(zmq.SUB)
        stuck.rcvhwm = 1
        stuck.subscribe(b"")
        stuck.connect(f"ipc://{tmp_path}/events")
        reader = await subscribed(context, tmp_path, batches)
        assert await stuck.poll(10_000)
        first, slowest_s = batches.num_batches, 0.0
        for number in range(first, first + 5000):
            begun_s = time.perf_counter()
            publish(batches, 64)
            slowest_s = max(slowest_s, time.perf_counter() - begun_s)
            assert int.from_bytes((await received(reader))[1], "big") == number
        assert slowest_s < 1
        heard = []
        while await stuck.poll(50):
            heard.append(int.from_bytes((await received(stuck))[1], "big"))
        assert heard == sorted(heard)
        assert len([number for number in heard if number >= first]) < 5000


async def test_nobody_needs_to_listen(tmp_path: Path) -> None:
    async with publishing(tmp_path) as batches:
        for _ in range(20_000):
            publish(batches)
        assert batches.num_batches == 20_000


async def test_an_engine_connects_to_a_collector_of_many(context: zmq.asyncio.Context) -> None:
    collector = context.socket(zmq.SUB)
    collector.subscribe(b"")
    port = collector.bind_to_random_port("tcp://127.0.0.1")
    batches = KVEventBatches(asyncio.get_running_loop())
    publisher = KVEventPublisher(batches, f"tcp://127.0.0.1:{port}")
    try:
        while not await collector.poll(10):
            publish(batches)
        assert len(vllm.decode((await received(collector))[2]).events) == 1
    finally:
        await publisher.close()


async def test_after_the_end_the_address_is_free(tmp_path: Path) -> None:
    for _ in range(2):
        batches = KVEventBatches(asyncio.get_running_loop())
        publisher = KVEventPublisher(batches, "tcp://*:0", "tcp://127.0.0.1:0")
        (taken,) = (publisher.endpoint.replace("0.0.0.0", "*"),)
        with pytest.raises(StartupError, match=r"kv_events: cannot listen on tcp://\*:\d+ \(Address already in use"):
            KVEventPublisher(batches, taken)
        with pytest.raises(StartupError, match=r"kv_events_replay: cannot listen on .*Address already in use"):
            KVEventPublisher(batches, "tcp://*:0", publisher.replay_endpoint)
        assert len(batches.listeners) == 1
        await publisher.close()
        again = KVEventPublisher(batches, taken)
        await again.close()
        assert batches.listeners == []
    await until(lambda: all(task.get_name() != "kv-event-replays" for task in asyncio.all_tasks()))


@pytest.mark.parametrize("address", ["nonsense", "tcp://", "udp://*:1", "tcp://*"])
async def test_a_malformed_address_is_named(address: str) -> None:
    with pytest.raises(StartupError, match=r"kv_events: cannot .* to|kv_events: cannot listen on") as refused:
        KVEventPublisher(KVEventBatches(asyncio.get_running_loop()), address)
    assert address in str(refused.value)


async def test_a_missing_package_and_a_replay_of_nothing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = KVEventBatches(asyncio.get_running_loop())
    assert new_publisher(EngineSettings(), batches) is None
    with pytest.raises(StartupError, match="kv_events_replay needs kv_events"):
        new_publisher(EngineSettings(kv_events_replay="tcp://*:0"), batches)
    monkeypatch.delitem(sys.modules, "triptych_engine.kv_events.publisher")
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(StartupError, match=r"kv_events needs the packages pyzmq and msgspec .*zmq"):
        new_publisher(EngineSettings(kv_events="tcp://*:0"), batches)
