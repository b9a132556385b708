"""Publishes KV cache events over ZeroMQ in vLLM's form, for the routers of llm-d, Dynamo and others.

A PUB socket sends `[topic, sequence number, payload]`. The number has 8 bytes, big-endian. The payload is msgpack:
`[timestamp, [event, ...], data parallel rank]`, each event a map with its `type`. A ROUTER socket answers `[first number]` with
`[topic, number, payload]` for each batch from there on that is still kept, and then with `["", -1, ""]`.

The form is that of vLLM since vllm-project/vllm#42892 (events as maps) and #45177 (the topic in replays). Read: its
vllm/distributed/kv_events.py at commit 0181ea3173e5 for the fields of events, and a later copy for replays and the batch, which
stayed an array. Payloads that others have captured from vLLM 0.26.0 and 0.28.0 are the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from triptych.errors import StartupError

from triptych_engine.kv_events.batches import MEDIUM, KVEventBatch, KVEventBatches, external_hash, extra_keys
from triptych_engine.scheduling.cache.block_pool import BlockRemoved, BlockStored, KVEvent

log = logging.getLogger(__name__)
#: Batches that wait in a socket for one slow subscriber. Then ZeroMQ drops what is new, and the subscriber sees a gap in the
#: numbers. vLLM lets 100,000 wait, which can be gigabytes.
_MAX_WAITING = 1000
#: What is kept for replays: batches, as in vLLM, and bytes of payload.
_MAX_KEPT, _MAX_KEPT_BYTES = 10_000, 64 << 20
_END = (-1).to_bytes(8, "big", signed=True)
#: This engine is not one of several that share a model. vLLM numbers such a one 0.
_DATA_PARALLEL_RANK = 0


def encode(batch: KVEventBatch) -> bytes:
    """The payload of a batch."""
    return msgspec.msgpack.encode((batch.timestamp_s, [_map(event) for event in batch.events], _DATA_PARALLEL_RANK))


def _map(event: KVEvent) -> dict[str, Any]:
    if isinstance(event, BlockStored):
        parent = event.parent_block_hash
        return {
            "type": "BlockStored",
            "block_hashes": [external_hash(block_hash) for block_hash in event.block_hashes],
            "parent_block_hash": None if parent is None else external_hash(parent),
            "token_ids": event.token_ids,
            "block_size": len(event.token_ids) // len(event.block_hashes),
            "lora_id": None,
            "medium": MEDIUM,
            "lora_name": None,
            "extra_keys": extra_keys(event),
        }
    if isinstance(event, BlockRemoved):
        return {
            "type": "BlockRemoved",
            "block_hashes": [external_hash(block_hash) for block_hash in event.block_hashes],
            "medium": MEDIUM,
        }
    return {"type": "AllBlocksCleared"}


class KVEventPublisher:
    """The sockets of one engine. All of it runs on the event loop. No subscriber can make it wait.

    Args:
        endpoint: where to publish. As in vLLM, an address with a wildcard (`tcp://*:5557`) is listened on. Any other is connected
            to: a subscriber of many engines may listen there.
        replay_endpoint: where to listen for requests of batches that were lost; None for nowhere.
        topic: the first part of each message. Subscribers filter by its beginning.

    Raises:
        StartupError: an address is malformed or taken.
    """

    def __init__(self, batches: KVEventBatches, endpoint: str, replay_endpoint: str | None = None, topic: str = "") -> None:
        self._batches, self._topic = batches, topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque()
        self._num_kept_bytes = 0
        self._context = zmq.Context()
        self._replays: asyncio.Task[None] | None = None
        try:
            self._publisher = self._context.socket(zmq.PUB)
            self._publisher.sndhwm = _MAX_WAITING
            self.endpoint = _open(self._publisher, endpoint, "kv_events", connects=not _is_wildcard(endpoint))
            if replay_endpoint is not None:
                router = self._context.socket(zmq.ROUTER)
                router.copy_threshold = 0
                router.sndhwm = _MAX_KEPT + 1  # room for a whole answer: a ROUTER socket drops what is more
                self.replay_endpoint = _open(router, replay_endpoint, "kv_events_replay")
                replays = self._answer_replays(zmq.asyncio.Socket.from_socket(router))
                self._replays = asyncio.create_task(replays, name="kv-event-replays")
        except BaseException:
            self._context.destroy(linger=0)
            raise
        batches.listeners.append(self._publish)

    async def close(self) -> None:
        """Close the sockets. What no subscriber has read by then is lost."""
        self._batches.listeners.remove(self._publish)
        if self._replays is not None:
            self._replays.cancel()
            await asyncio.gather(self._replays, return_exceptions=True)
        self._context.destroy(linger=0)

    def _publish(self, batch: KVEventBatch) -> None:
        payload = encode(batch)
        number = batch.sequence_number
        self._publisher.send_multipart((self._topic, number.to_bytes(8, "big"), payload), zmq.NOBLOCK)
        if self._replays is not None:
            self._kept.append((number, payload))
            self._num_kept_bytes += len(payload)
            while len(self._kept) > _MAX_KEPT or self._num_kept_bytes > _MAX_KEPT_BYTES:
                self._num_kept_bytes -= len(self._kept.popleft()[1])

    async def _answer_replays(self, router: zmq.asyncio.Socket) -> None:
        try:
            while True:
                await self._answer_one(router, *await router.recv_multipart())
        finally:
            router.close(linger=0)

    async def _answer_one(self, router: zmq.asyncio.Socket, client: bytes, *request: bytes) -> None:
        if len(request) != 2 or len(request[1]) != 8:
            log.warning("a request for a replay of KV events is malformed")
            return
        first = int.from_bytes(request[1], "big")
        self._batches.num_replays += 1
        with contextlib.suppress(zmq.ZMQError):  # the client has gone
            for count, (number, payload) in enumerate([one for one in self._kept if one[0] >= first]):
                # Without a copy: a client that asks and does not read would make as many as it likes.
                await router.send_multipart((client, b"", self._topic, number.to_bytes(8, "big"), payload), copy=False)
                if count % 100 == 99:
                    await asyncio.sleep(0)  # others have work to do on the event loop
            await router.send_multipart((client, b"", b"", _END, b""))


def _is_wildcard(endpoint: str) -> bool:
    return "*" in endpoint or "::" in endpoint or "//0.0.0.0:" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def _open(socket: zmq.Socket[Any], endpoint: str, setting: str, *, connects: bool = False) -> str:
    """Listen, or connect. Returns the actual address."""
    socket.ipv6 = "[" in endpoint
    try:
        if connects:
            socket.connect(endpoint)
        else:
            socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise StartupError(f"{setting}: cannot {'connect to' if connects else 'listen on'} {endpoint} ({error})") from error
    return bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
