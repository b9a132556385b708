"""The state of one media item of a call: a state machine without I/O. `MediaEncoding` owns it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from triptych.errors import TriptychError
from triptych.v1 import encoder_pb2

from triptych_frontend.media.item import PreparedMedia


class ItemState(Enum):
    """The state of an item before and while the engine uses it."""

    #: No encoder was asked for its embeddings yet.
    PREPARED = "prepared"
    #: An encoder was asked for the embeddings.
    ENCODING = "encoding"
    #: An encoder holds the embeddings under a lease, so that the engine can fetch them.
    READY = "ready"
    #: The engine could not fetch the embeddings.
    LOST = "lost"
    #: The engine computed the item's tokens, and the lease has ended. A preempted request can still lose its embeddings.
    SETTLED = "settled"
    #: The embeddings cannot be computed.
    FAILED = "failed"
    #: The call has ended, and nothing is held for the item.
    RELEASED = "released"


_ALL = frozenset(ItemState)
#: event -> states in which it may happen, and the state after it
_TRANSITIONS: dict[str, tuple[frozenset[ItemState], ItemState]] = {
    "start": (frozenset({ItemState.PREPARED, ItemState.LOST}), ItemState.ENCODING),
    "finish": (frozenset({ItemState.ENCODING}), ItemState.READY),
    "fail": (frozenset({ItemState.ENCODING}), ItemState.FAILED),
    "lose": (frozenset({ItemState.READY, ItemState.SETTLED}), ItemState.LOST),
    # From ENCODING if the engine had the item's tokens in its prefix cache.
    "settle": (frozenset({ItemState.ENCODING, ItemState.READY}), ItemState.SETTLED),
    "release": (_ALL - {ItemState.RELEASED}, ItemState.RELEASED),
}


class IllegalTransitionError(Exception):
    """An event that must not happen in the item's state, i.e. a bug."""


class Lease(NamedTuple):
    """Keeps embeddings in an encoder's cache until the lease ends."""

    #: The encoder's instance id.
    encoder_id: str
    lease_id: str


@dataclass(frozen=True)
class Encoded:
    """An encoder's answer about an item, and what it cost."""

    encoder_id: str
    result: encoder_pb2.EncodeResult
    #: Wall time of the calls to the encoder, minus the time that the encoder itself reports; in seconds.
    transfer_s: float


class CallItem:
    """One media item of a call. Each event is a method. It raises IllegalTransitionError in a state that does not allow the event.

    The item holds a lease only in the state READY. The events that leave this state return the lease, and the caller ends it.

    Args:
        encoder_id: instance id of the encoder that the item belongs to.
    """

    def __init__(self, media: PreparedMedia, encoder_id: str) -> None:
        self.media = media
        self.state = ItemState.PREPARED
        #: Instance id of the encoder from which the engine fetches the embeddings.
        self.encoder_id = encoder_id
        self.lease: Lease | None = None
        #: An encoder's last answer, for reports; None before the first.
        self.encoded: Encoded | None = None
        #: Why the item failed; set in the state FAILED.
        self.error: TriptychError | None = None

    def start(self) -> None:
        """An encoder is asked for the embeddings, for the first time or again."""
        self._go("start")

    def finish(self, encoded: Encoded) -> None:
        """An encoder holds the embeddings."""
        self._go("finish")
        self.encoded = encoded
        self.encoder_id = encoded.encoder_id
        self.lease = Lease(encoded.encoder_id, encoded.result.lease_id)

    def fail(self, error: TriptychError) -> None:
        """No encoder can compute the embeddings."""
        self._go("fail")
        self.error = error

    def lose(self) -> Lease | None:
        """The engine could not fetch the embeddings."""
        self._go("lose")
        return self._without_lease()

    def settle(self) -> Lease | None:
        """The engine computed the item's tokens."""
        self._go("settle")
        return self._without_lease()

    def release(self) -> Lease | None:
        """The call has ended."""
        self._go("release")
        self.media.file.drop()
        return self._without_lease()

    def _go(self, event: str) -> None:
        allowed, after = _TRANSITIONS[event]
        if self.state not in allowed:
            raise IllegalTransitionError(f"{self.media.field} ({self.media.key.hex()[:12]}): {event} while {self.state.value}")
        self.state = after

    def _without_lease(self) -> Lease | None:
        lease, self.lease = self.lease, None
        return lease
