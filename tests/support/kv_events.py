"""What a router makes of KV events: vLLM's own types, as its example subscriber decodes them, and the prefixes of one engine."""

from __future__ import annotations

from typing import Any

import msgspec
from triptych_common.model.blocks import hash_block, root_hash


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


decode = msgspec.msgpack.Decoder(KVEventBatch).decode


class Receiver:
    """The blocks of one engine. It refuses events that contradict each other, and names that are not those of their tokens."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        #: Of every block that was ever stored: its name -> its whole hash.
        self._whole: dict[int, bytes] = {}

    def take(self, batch: KVEventBatch) -> None:
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.held.clear()
            elif isinstance(event, BlockRemoved):
                assert event.medium == "GPU"
                assert self.held.issuperset(event.block_hashes)
                self.held.difference_update(event.block_hashes)  # type: ignore[arg-type]
            else:
                self._store(event)

    def _store(self, event: BlockStored) -> None:
        assert (event.medium, event.lora_id, event.lora_name) == ("GPU", None, None)
        assert len(event.token_ids) == event.block_size * len(event.block_hashes)
        keys = event.extra_keys
        assert keys is not None
        assert len(keys) == len(event.block_hashes)
        if event.parent_block_hash is None:
            parent = root_hash(keys[0][0] if keys[0] else "")
        else:
            parent = self._whole[event.parent_block_hash]  # type: ignore[index]
        for index, name in enumerate(event.block_hashes):
            assert name not in self.held
            parent = hash_block(parent, event.token_ids[index * event.block_size : (index + 1) * event.block_size])
            assert name == int.from_bytes(parent[-8:], "big")
            self._whole[name] = parent
            self.held.add(name)
