"""`SubscribeKvEvents` of vLLM's contract: what the prefix cache holds now, and then what happens to it.

The meaning of the messages is that of smg-grpc-proto's common.proto.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from smg_grpc_proto.generated import common_pb2 as smg_pb2

from triptych_engine.kv_events.batches import MEDIUM, KVEventBatch, KVEventBatches, external_hash, extra_keys
from triptych_engine.scheduling.cache.block_pool import AllBlocksCleared, BlockRemoved, BlockStored, ExtraKey, KVEvent

#: Batches that wait for a slow subscriber. Then its stream ends.
_MAX_WAITING = 1024
#: Most of a chunk of a snapshot: building one keeps the event loop, and with it all streams, for some milliseconds.
_MAX_CHUNK_TOKENS, _MAX_CHUNK_BLOCKS = 4096, 256
#: This engine is not one of several that share a model.
_RANK = 0


class _Block(NamedTuple):
    """A block in the index."""

    parent: bytes | None
    cache_salt: str
    token_ids: array[int]
    extra_keys: tuple[ExtraKey, ...]


class KvEventRelay:
    """Follows the batches of an engine from its start, so that it can tell at any time what the index holds. This takes 4 bytes for
    each cached token, and some 300 for each block."""

    def __init__(self, batches: KVEventBatches) -> None:
        self._batches = batches
        self._blocks: dict[bytes, _Block] = {}
        #: The newest batch, and the id of its first event. Ids begin at 1.
        self._last: tuple[KVEventBatch, int] | None = None
        self._next_event_id = 1
        self._subscriptions: set[KvSubscription] = set()
        batches.listeners.append(self._take)

    def subscribe(self, start: int) -> KvSubscription | None:
        """Begin a stream; `leave` must follow. None if batches are asked for that are not kept. There is no history: a snapshot
        costs no more than a router's own record of what it has missed.

        Args:
            start: 0 for what the cache holds now. Otherwise the number of the newest batch, which comes again, because routers
                send the last number that they have, or of the next one.
        """
        first: Iterator[Any] = iter(())
        if start == 0:
            if self._last is not None:
                first = _snapshot(dict(self._blocks), self._last[0])
        elif self._last is not None and start == self._last[0].sequence_number:
            first = iter([_message(*self._last)])
        elif start != self._batches.num_batches:
            return None
        subscription = KvSubscription(first)
        self._subscriptions.add(subscription)
        return subscription

    def leave(self, subscription: KvSubscription) -> None:
        """End a stream."""
        self._subscriptions.discard(subscription)

    def _take(self, batch: KVEventBatch) -> None:
        for event in batch.events:
            self._apply(event)
        self._last = batch, self._next_event_id
        self._next_event_id += len(batch.events)
        if self._subscriptions:
            message = _message(*self._last)
            for subscription in self._subscriptions:
                self._batches.num_dropped += subscription.put(message)

    def _apply(self, event: KVEvent) -> None:
        if isinstance(event, AllBlocksCleared):
            self._blocks.clear()
        elif isinstance(event, BlockRemoved):
            for block_hash in event.block_hashes:
                del self._blocks[block_hash]
        else:
            size, parent = len(event.token_ids) // len(event.block_hashes), event.parent_block_hash
            for index, block_hash in enumerate(event.block_hashes):
                token_ids = array("I", event.token_ids[index * size : (index + 1) * size])
                self._blocks[block_hash] = _Block(parent, event.cache_salt, token_ids, event.extra_keys[index])
                parent = block_hash


class KvSubscription:
    """The messages of one stream that were not read yet."""

    def __init__(self, first: Iterator[Any]) -> None:
        self._first = first
        self._waiting: asyncio.Queue[Any] = asyncio.Queue()
        self._is_lost = False

    def put(self, message: Any) -> int:
        """Add a message. Returns how many are dropped, because too many wait."""
        if self._is_lost:
            return 1
        if self._waiting.qsize() < _MAX_WAITING:
            self._waiting.put_nowait(message)
            return 0
        self._is_lost = True
        dropped = self._waiting.qsize() + 1
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait(None)
        return dropped

    async def messages(self) -> AsyncIterator[Any]:
        """Without an end, unless some were dropped."""
        for message in self._first:
            yield message
        while (message := await self._waiting.get()) is not None:
            yield message


def _snapshot(blocks: Mapping[bytes, _Block], last: KVEventBatch) -> Iterator[Any]:
    """All blocks, in chunks whose numbers end with that of the last batch. So there must not be more of them than batches."""
    size = max((len(block.token_ids) for block in islice(blocks.values(), 1)), default=1)
    num_chunks = -(-len(blocks) // max(1, min(_MAX_CHUNK_TOKENS // size, _MAX_CHUNK_BLOCKS)))
    num_chunks = max(1, min(num_chunks, last.sequence_number + 1))
    ordered = _parents_first(blocks)
    for index in range(num_chunks):
        events = [smg_pb2.KvCacheEvent(cleared=smg_pb2.KvCacheCleared())] if index == 0 else []
        for block_hash in islice(ordered, -(-len(blocks) // num_chunks)):
            block = blocks[block_hash]
            stored = BlockStored(block.parent, block.cache_salt, [block_hash], block.token_ids.tolist(), [block.extra_keys])
            events.append(smg_pb2.KvCacheEvent(stored=_stored(stored)))
        yield smg_pb2.KvEventBatch(
            sequence_number=last.sequence_number - num_chunks + 1 + index,
            timestamp=last.timestamp_s,
            events=events,
            dp_rank=_RANK,
            snapshot=smg_pb2.KvSnapshotChunk(index=index, count=num_chunks, blocks=len(blocks)),
        )


def _parents_first(blocks: Mapping[bytes, _Block]) -> Iterator[bytes]:
    """A parent that was removed and stored again is younger than its children."""
    done = set[bytes]()
    for block_hash in blocks:
        chain = list[bytes]()
        ancestor: bytes | None = block_hash
        while ancestor is not None and ancestor in blocks and ancestor not in done:
            done.add(ancestor)
            chain.append(ancestor)
            ancestor = blocks[ancestor].parent
        yield from reversed(chain)


def _message(batch: KVEventBatch, first_event_id: int) -> Any:
    """A batch. It has no load, so routers ask for it with `GetLoads`."""
    events = [_event(event, event_id) for event_id, event in enumerate(batch.events, first_event_id)]
    return smg_pb2.KvEventBatch(sequence_number=batch.sequence_number, timestamp=batch.timestamp_s, events=events, dp_rank=_RANK)


def _event(event: KVEvent, event_id: int) -> Any:
    if isinstance(event, BlockStored):
        return smg_pb2.KvCacheEvent(event_id=event_id, stored=_stored(event))
    if isinstance(event, BlockRemoved):
        removed = smg_pb2.KvBlocksRemoved(
            block_hashes=map(_signed_hash, event.block_hashes),
            tier=smg_pb2.KV_CACHE_TIER_DEVICE,
            medium=MEDIUM,
            locality=smg_pb2.KV_CACHE_LOCALITY_LOCAL,
        )
        return smg_pb2.KvCacheEvent(event_id=event_id, removed=removed)
    return smg_pb2.KvCacheEvent(event_id=event_id, cleared=smg_pb2.KvCacheCleared())


def _stored(event: BlockStored) -> Any:
    size = len(event.token_ids) // len(event.block_hashes)
    blocks = [
        smg_pb2.KvBlock(
            block_hash=_signed_hash(block_hash),
            token_ids=event.token_ids[index * size : (index + 1) * size],
            block_size=size,
            extra_keys=map(_extra_key, keys or ()),
        )
        for index, (block_hash, keys) in enumerate(zip(event.block_hashes, extra_keys(event), strict=True))
    ]
    return smg_pb2.KvBlocksStored(
        blocks=blocks,
        parent_block_hash=None if event.parent_block_hash is None else _signed_hash(event.parent_block_hash),
        tier=smg_pb2.KV_CACHE_TIER_DEVICE,
        medium=MEDIUM,
        locality=smg_pb2.KV_CACHE_LOCALITY_LOCAL,
        cache_salt=event.cache_salt or None,
    )


def _extra_key(key: ExtraKey | str) -> Any:
    if isinstance(key, str):
        return smg_pb2.KvBlockExtraKey(text=key)
    if isinstance(key, bytes):
        return smg_pb2.KvBlockExtraKey(blob=key)
    return smg_pb2.KvBlockExtraKey(multimodal=smg_pb2.KvMultimodalKey(identifier=key[0], offset=key[1]))


def _signed_hash(block_hash: bytes) -> int:
    """The same 64 bits as in ZeroMQ's messages."""
    name = external_hash(block_hash)
    return name - (1 << 64) if name >> 63 else name
