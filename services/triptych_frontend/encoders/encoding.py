"""The encoding of one call's media.

    encoding = MediaEncoding(client, prompt.media, prompt.hold)   # returns at once
    await encoding.announced()    # one round trip: from now on, fetches of the keys wait for items that are still being encoded
    ... media=encoding.refs ...   # sent to the engine
    await encoding.wait()         # during the generation: raises the error of an item that cannot be encoded
    encoding.lose()               # if the engine could not fetch; `wait` encodes the items again, and `refs` change
    encoding.settle()             # when all sequences have their first token
    encoding.when_told(callback)  # before the report: the encoders' replies may come after the engine's tokens
    encoding.end()                # at the end, also after an error

`generation.sequences.media_call` does this for each call with media.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from triptych.errors import InvalidRequestError, TriptychError
from triptych.v1 import common_pb2
from triptych_common.rpc.tensors import from_numpy

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.item import CallItem, Encoded, ItemState, Lease
from triptych_frontend.errors import client_error
from triptych_frontend.media.budget import MediaHold
from triptych_frontend.media.item import PreparedMedia

log = logging.getLogger(__name__)

#: The engine may compute tokens with embeddings before their encoder's reply arrives here. Later replies are not waited for.
_REPLY_S = 1.0


class MediaEncoding:
    """Owns the items of one call and their states. Encoding starts with the constructor.

    Args:
        media: the items, in the order of the prompt. Equal items are encoded once.
        hold: the items' share of the media budget. After `settle` it is spare: the files are kept only until another call needs the
            budget. With None they are kept until the end.

    Raises:
        ServiceUnavailableError: no encoder is available.
    """

    def __init__(self, client: EncoderClient, media: Sequence[PreparedMedia], hold: MediaHold | None = None) -> None:
        self._client = client
        self._media = media
        self._hold = hold
        self._items = {one.key: CallItem(one, client.encoder_id_of(one.key)) for one in media}
        self._tasks: set[asyncio.Task[None]] = set()
        self._not_asked = set(self._items)
        self._announced = asyncio.Event()
        self._is_settled = False
        self._patience: asyncio.TimerHandle | None = None
        for item in self._items.values():
            self._start(item)

    @property
    def refs(self) -> list[common_pb2.MediaRef]:
        """The current or future place of each item, in the order of the prompt. Lease ids are set once `wait` has returned."""
        items = [self._items[one.key] for one in self._media]
        return [media_ref(item.media, item.encoder_id, item.lease.lease_id if item.lease else "") for item in items]

    def result_of(self, key: bytes) -> Encoded | None:
        """An encoder's last answer about an item; None before its first answer."""
        return self._items[key].encoded

    async def announced(self) -> None:
        """Wait until the encoders know the keys. Raises nothing."""
        await self._announced.wait()

    async def wait(self) -> None:
        """Wait until no item is being encoded. Starts to encode lost items again.

        Raises:
            InvalidRequestError: no encoder can ever encode an item.
            TriptychError: no encoder could encode an item now. The error names the item.
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
        """The engine could not fetch embeddings. Items with finished embeddings become lost; others are still being encoded."""
        self._is_settled = False
        self._stop_patience()
        held = [*self._in(ItemState.READY, ItemState.SETTLED)]
        if not held:
            return
        self._client.counts["again"] += 1
        if self._hold is not None:
            self._hold.need()
        self._end_leases(item.lose() for item in held)

    def settle(self) -> None:
        """The engine computed the tokens of all items: end the leases, and keep the files only as spare.

        Items that are still being encoded follow when their encoders reply, or after a moment: the engine had them in a cache.
        """
        self._is_settled = True
        self._end_leases(item.settle() for item in self._in(ItemState.READY))
        if self._tasks and self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(_REPLY_S, self._cancel)
        if self._hold is not None:
            self._hold.spare(self._drop_files)

    def when_told(self, callback: Callable[[], None]) -> None:
        """Call back when the encoders have replied, at once if they have, and not more than a moment after `settle`."""
        if self._tasks:
            replies = asyncio.gather(*self._tasks, return_exceptions=True)
            replies.add_done_callback(lambda _: callback())
        else:
            callback()

    def end(self) -> None:
        """Call `close` in the background."""
        self._client.in_background(self.close())

    async def close(self) -> None:
        """Stop encoding, end the leases, and drop the files."""
        self._stop_patience()
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
            if self._is_settled:
                self._end_leases([item.settle()])
        except asyncio.CancelledError:
            if self._is_settled:
                item.settle()
            raise
        except TriptychError as error:
            if self._is_settled:
                item.settle()
                return
            if not isinstance(error, InvalidRequestError):
                self._client.counts["failed"] += 1
            item.fail(error)
        except Exception as error:
            item.fail(client_error(error, log))
        finally:
            self._note_asked(key)

    def _note_asked(self, key: bytes) -> None:
        self._not_asked.discard(key)
        if not self._not_asked:
            self._announced.set()

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _cancel(self) -> set[asyncio.Task[None]]:
        for task in self._tasks:
            task.cancel()
        return self._tasks.copy()

    def _end_leases(self, leases: Iterable[Lease | None]) -> None:
        self._client.release([lease for lease in leases if lease is not None])

    def _drop_files(self) -> None:
        for item in self._items.values():
            item.media.file.drop()


def media_ref(item: PreparedMedia, encoder_id: str = "", lease_id: str = "") -> common_pb2.MediaRef:
    """The reference to an item that the engine gets."""
    return common_pb2.MediaRef(
        modality=item.modality,
        key=item.key,
        encoder_instance_id=encoder_id,
        lease_id=lease_id,
        layout=[common_pb2.NamedTensor(name=name, tensor=from_numpy(array)) for name, array in item.expansion.layout],
    )
