"""The media of one call on their way through the encoders. See encoder_client for how it is used."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from triptych_common.pb import common_pb2, encoder_pb2
from triptych_common.rpc.tensors import from_numpy

from triptych_frontend.media.item import PreparedMedia

if TYPE_CHECKING:
    from triptych_frontend.encoders.client import EncoderClient


@dataclasses.dataclass(frozen=True)
class EncodedItem:
    """What became of one item, and what it cost."""

    #: The instance id of the encoder that has it.
    encoder_id: str
    result: encoder_pb2.EncodeResult
    #: Wall time of the calls to the encoder, less what the encoder itself reports; in seconds.
    transfer_s: float


class MediaEncoding:
    """The media of one call, encoded or about to be. See the module for how to use it."""

    def __init__(self, client: EncoderClient, items: list[PreparedMedia], on_drop: Callable[[], None]) -> None:
        self._client = client
        self._on_drop = on_drop
        self._items = items
        # Equal items of one call are encoded once.
        self._by_key = {item.key: item for item in items}
        self._encoder_ids = {key: client.encoder_id_of(key) for key in self._by_key}
        #: key -> what became of it
        self._encoded: dict[bytes, EncodedItem] = {}
        #: (encoder's instance id, lease id) of leases that were not ended
        self._leases: list[tuple[str, str]] = []
        self._unasked = set(self._by_key)
        self._asked = asyncio.Event()
        self._task = self._start()

    @property
    def refs(self) -> list[common_pb2.MediaRef]:
        """Where each item is, or will be, in the order of the items. Leases are named once `wait` returned."""
        return [self._ref(item) for item in self._items]

    @property
    def results(self) -> list[EncodedItem]:
        """What became of each item, in the order of the items; after `wait`."""
        return [self._encoded[item.key] for item in self._items]

    def result_of(self, key: bytes) -> EncodedItem | None:
        """What became of an item; None while it is on its way."""
        return self._encoded.get(key)

    async def announced(self) -> None:
        """Until the encoders know the keys: a fetch then waits for an item that is being encoded. Raises nothing."""
        await self._asked.wait()

    async def wait(self) -> None:
        """Until all items are encoded.

        Raises:
            InvalidRequestError: an item cannot be encoded, by anybody.
            TriptychError: no encoder could; names the item.
        """
        # Shielded: a caller that stops to wait does not stop the work, `close` does.
        await asyncio.shield(self._task)

    async def again(self) -> None:
        """The engine could not fetch embeddings: ask their encoders for them, and others when they are gone for good.

        Raises as `wait` does.
        """
        self._client.counts["again"] += 1
        if not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._release()
        self._encoded.clear()
        self._task = self._start()
        await self.wait()

    def drop_bytes(self) -> None:
        """Let go of the raw files, in the list that was handed over too: their KV is computed, or on its way."""
        self._items[:] = [dataclasses.replace(item, content=None) for item in self._items]
        self._by_key = {item.key: item for item in self._items}
        self._on_drop()

    def settle(self) -> None:
        """The engine has what it needs: stop what still runs, let go of the raw files, and end the leases."""
        self._task.cancel()
        self.drop_bytes()
        self._release()

    def end(self) -> None:
        """`close`, in the background."""
        self._client.in_background(self.close())

    async def close(self) -> None:
        """Stop what still runs, let go of the raw files, and end the leases."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.drop_bytes()
        self._release()

    def _start(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self._encode_all(), name="encode media")
        # Whoever never waits has learnt the error from the engine.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _encode_all(self) -> None:
        async def encode(item: PreparedMedia) -> None:
            encoded = await self._client.encode(item, lambda: self._note_asked(item.key))
            self._encoded[item.key] = encoded
            self._leases.append((encoded.encoder_id, encoded.result.lease_id))
            self._encoder_ids[item.key] = encoded.encoder_id

        tasks = [asyncio.create_task(encode(item)) for item in self._by_key.values()]
        try:
            await asyncio.gather(*tasks)
        finally:
            self._asked.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _note_asked(self, key: bytes) -> None:
        self._unasked.discard(key)
        if not self._unasked:
            self._asked.set()

    def _release(self) -> None:
        leases, self._leases = self._leases, []
        self._client.release(leases)

    def _ref(self, item: PreparedMedia) -> common_pb2.MediaRef:
        encoded = self._encoded.get(item.key)
        return media_ref(item, self._encoder_ids[item.key], encoded.result.lease_id if encoded is not None else "")


def media_ref(item: PreparedMedia, encoder_id: str = "", lease_id: str = "") -> common_pb2.MediaRef:
    """The item as the engine knows it."""
    return common_pb2.MediaRef(
        modality=item.modality,
        key=item.key,
        encoder_instance_id=encoder_id,
        lease_id=lease_id,
        layout=[common_pb2.NamedTensor(name=name, tensor=from_numpy(array)) for name, array in item.expansion.layout],
    )
