"""The media of one call on their way through the encoders.

    encoding = MediaEncoding(client, prompt.media, prompt.hold)   # returns at once
    await encoding.announced()    # a round trip: from now on, fetches of the keys wait for what is still being encoded
    ... media=encoding.refs ...   # to the engine
    await encoding.wait()         # beside the generation: raises the error of an item that cannot be had
    encoding.lose()               # when the engine could not fetch; `wait` makes the items again, then `refs` are new
    encoding.settle()             # when all sequences have their first token
    encoding.end()                # in the end, whatever happened

`generation.media_call` does so for each call with media.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence

from triptych_common.errors import InternalError, InvalidRequestError, TriptychError
from triptych_common.pb import common_pb2
from triptych_common.rpc.tensors import from_numpy

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.item import CallItem, Encoded, ItemState, Lease
from triptych_frontend.media.budget import MediaHold
from triptych_frontend.media.item import PreparedMedia

log = logging.getLogger(__name__)


class MediaEncoding:
    """Owns the items of one call and their states. Encoding starts with the constructor.

    Args:
        media: the items, in the order of the prompt. Equal ones are encoded once.
        hold: the room of their files. From `settle` on it is spare: the files are kept only while nobody else needs the room. None
            keeps them until the end.

    Raises:
        ServiceUnavailableError: no encoder is there.
    """

    def __init__(self, client: EncoderClient, media: Sequence[PreparedMedia], hold: MediaHold | None = None) -> None:
        self._client = client
        self._media = media
        self._hold = hold
        self._items = {one.key: CallItem(one, client.encoder_id_of(one.key)) for one in media}
        self._tasks: set[asyncio.Task[None]] = set()
        self._not_asked = set(self._items)
        self._announced = asyncio.Event()
        for item in self._items.values():
            self._start(item)

    @property
    def refs(self) -> list[common_pb2.MediaRef]:
        """Where each item is, or will be, in the order of the prompt. Leases are named once `wait` returned."""
        items = [self._items[one.key] for one in self._media]
        return [media_ref(item.media, item.encoder_id, item.lease.lease_id if item.lease else "") for item in items]

    def result_of(self, key: bytes) -> Encoded | None:
        """What an encoder answered about an item; None before its first answer."""
        return self._items[key].encoded

    async def announced(self) -> None:
        """Wait until the encoders know the keys. Raises nothing."""
        await self._announced.wait()

    async def wait(self) -> None:
        """Wait until no item is being encoded. Lost items are encoded again first.

        Raises:
            InvalidRequestError: no encoder can ever encode an item.
            TriptychError: no encoder could encode an item now; names the item.
        """
        for item in self._in(ItemState.LOST):
            self._start(item)
        while True:
            failed = next(self._in(ItemState.FAILED), None)
            if failed is not None and failed.error is not None:
                raise failed.error
            if not self._tasks:
                return
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def lose(self) -> None:
        """The engine could not fetch embeddings. Those that were held count as lost; others are on their way already."""
        held = [*self._in(ItemState.READY, ItemState.SETTLED)]
        if not held:
            return
        self._client.counts["again"] += 1
        if self._hold is not None:
            self._hold.need()
        self._end_leases(item.lose() for item in held)

    def settle(self) -> None:
        """The engine computed the tokens of all items: stop encoding, end the leases, and keep the files only as spare ones."""
        self._cancel()
        self._end_leases(item.settle() for item in self._in(ItemState.ENCODING, ItemState.READY))
        if self._hold is not None:
            self._hold.spare(self._drop_files)

    def end(self) -> None:
        """`close`, in the background."""
        self._client.in_background(self.close())

    async def close(self) -> None:
        """Stop encoding, end the leases, and drop the files."""
        tasks = self._cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._end_leases(item.release() for item in self._items.values() if item.state is not ItemState.RELEASED)
        if self._hold is not None:
            self._hold.release()

    def _in(self, *states: ItemState) -> Iterator[CallItem]:
        return iter([item for item in self._items.values() if item.state in states])

    def _start(self, item: CallItem) -> None:
        item.start()
        task = asyncio.create_task(self._encode(item), name="encode media")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _encode(self, item: CallItem) -> None:
        key = item.media.key
        try:
            item.finish(await self._client.encode(item.media, lambda: self._note_asked(key)))
        except TriptychError as error:
            if not isinstance(error, InvalidRequestError):
                self._client.counts["failed"] += 1
            item.fail(error)
        except Exception as error:
            log.exception("unexpected error")
            item.fail(InternalError(f"internal error ({type(error).__name__}); the service's log has the details"))
        finally:
            self._note_asked(key)

    def _note_asked(self, key: bytes) -> None:
        self._not_asked.discard(key)
        if not self._not_asked:
            self._announced.set()

    def _cancel(self) -> set[asyncio.Task[None]]:
        for task in self._tasks:
            task.cancel()
        return self._tasks.copy()

    def _end_leases(self, leases: Iterable[Lease | None]) -> None:
        self._client.release([lease for lease in leases if lease is not None])

    def _drop_files(self) -> None:
        for item in self._items.values():
            item.media.file.drop()


async def ensure(client: EncoderClient, media: Sequence[PreparedMedia]) -> MediaEncoding:
    """Encode the items of a call, and wait for them. When it raises, it leaves nothing behind."""
    encoding = MediaEncoding(client, media)
    try:
        await encoding.wait()
    except BaseException:
        await encoding.close()
        raise
    return encoding


def media_ref(item: PreparedMedia, encoder_id: str = "", lease_id: str = "") -> common_pb2.MediaRef:
    """The item as the engine knows it."""
    return common_pb2.MediaRef(
        modality=item.modality,
        key=item.key,
        encoder_instance_id=encoder_id,
        lease_id=lease_id,
        layout=[common_pb2.NamedTensor(name=name, tensor=from_numpy(array)) for name, array in item.expansion.layout],
    )
