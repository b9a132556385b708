"""The states of a media item: a machine that tries all events in all orders."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from triptych.errors import InternalError
from triptych.v1 import encoder_pb2
from triptych_frontend.encoders.item import CallItem, Encoded, IllegalTransitionError, ItemState, Lease
from triptych_frontend.media.item import IMAGE, Expansion, MediaFile, PreparedMedia

FIELD = "messages[0].content[0].media"
#: What may follow on what, as a diagram would show it.
ALLOWED = {
    ItemState.PREPARED: {"start", "release"},
    ItemState.ENCODING: {"finish", "fail", "settle", "release"},
    ItemState.READY: {"lose", "settle", "release"},
    ItemState.LOST: {"start", "release"},
    ItemState.SETTLED: {"lose", "release"},
    ItemState.FAILED: {"release"},
    ItemState.RELEASED: set[str](),
}


def call_item() -> CallItem:
    media = PreparedMedia(IMAGE, b"key", MediaFile(b"file"), {}, Expansion("", 1), FIELD)
    return CallItem(media, "the encoder it belongs to")


class ItemMachine(RuleBasedStateMachine):
    """Sends any event at any time. Each lease that the item was given must be given back, once."""

    def __init__(self) -> None:
        super().__init__()
        self.item = call_item()
        self.numbers = itertools.count()
        self.open_leases: set[Lease] = set()

    @rule(event=st.sampled_from(["start", "lose", "settle", "release"]))
    def send(self, event: str) -> None:
        before = self.item.state
        if event not in ALLOWED[before]:
            with pytest.raises(IllegalTransitionError, match=f"{event} while {before.value}"):
                getattr(self.item, event)()
            assert self.item.state is before
            return
        lease = getattr(self.item, event)()
        if lease is not None:
            self.open_leases.remove(lease)

    @rule()
    def finish(self) -> None:
        number = next(self.numbers)
        encoded = Encoded(f"encoder {number}", encoder_pb2.EncodeResult(lease_id=f"lease {number}"), 0.0)
        if self.item.state is ItemState.ENCODING:
            self.item.finish(encoded)
            self.open_leases.add(Lease(f"encoder {number}", f"lease {number}"))
            assert self.item.encoder_id == f"encoder {number}"
        else:
            with pytest.raises(IllegalTransitionError, match="finish while"):
                self.item.finish(encoded)

    @rule()
    def fail(self) -> None:
        if self.item.state is ItemState.ENCODING:
            self.item.fail(InternalError("broken"))
        else:
            with pytest.raises(IllegalTransitionError, match="fail while"):
                self.item.fail(InternalError("broken"))

    @invariant()
    def a_lease_is_held_in_one_state_alone(self) -> None:
        held = {self.item.lease} if self.item.lease is not None else set()
        assert held == self.open_leases
        assert (self.item.state is ItemState.READY) == bool(held)

    @invariant()
    def the_file_is_there_until_the_end(self) -> None:
        assert (self.item.media.file.content is None) == (self.item.state is ItemState.RELEASED)

    @invariant()
    def a_failure_has_its_error(self) -> None:
        assert self.item.state is not ItemState.FAILED or self.item.error is not None


ItemMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=20)
TestItemMachine = ItemMachine.TestCase


def test_a_wrong_event_names_item_state_and_event() -> None:
    item = call_item()
    with pytest.raises(IllegalTransitionError) as caught:
        item.settle()
    assert str(caught.value) == f"{FIELD} ({b'key'.hex()}): settle while prepared"
