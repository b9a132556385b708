"""Slots of the second tier, whoever clears, writes and reads it at the same time."""

from __future__ import annotations

import hashlib
import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.builders.engine import a_host_tier
from triptych_engine.kv_offload.host_tier import digest_of

_NAMES = [hashlib.sha256(bytes([number])).digest() for number in range(6)]
_SIZE = 1 << 10


def test_what_was_written_before_a_clear_is_not_found_after_it():
    tier = a_host_tier(4, _SIZE)
    old = tier.reserve(_NAMES[0])
    tier.clear()
    new = tier.reserve(_NAMES[0])
    assert old is not None
    assert new is not None
    tier.complete(old)
    assert not tier.num_found(_NAMES[:1])
    tier.complete(new)
    assert tier.pin(_NAMES[:1]) == [new]


def test_memory_that_was_touched_is_kept_until_all_is_cleared():
    tier = a_host_tier(8, 1 << 12)

    def num_bytes() -> int:
        return 512 * os.fstat(tier.slots.memory.descriptor).st_blocks

    for slot in range(8):  # as `Prefault` does
        tier.bytes_of(slot)[0][0] = 1
    slot = tier.reserve(_NAMES[0])
    assert slot is not None
    tier.abandon(slot)
    assert num_bytes() == 8 << 12
    tier.clear()
    assert num_bytes() == 0


def test_memory_is_given_back_when_the_last_one_lets_go():
    tier = a_host_tier(4, _SIZE)
    slot = tier.reserve(_NAMES[0])
    assert slot is not None
    tier.bytes_of(slot)[0][:4] = b"text"
    tier.complete(slot)
    tier.pin(_NAMES[:1])
    tier.clear()
    assert bytes(tier.bytes_of(slot)[0][:4]) == b"text", "somebody reads it"
    tier.unpin([slot])
    assert bytes(tier.bytes_of(slot)[0][:4]) == bytes(4)


def test_the_least_recently_used_block_makes_room():
    tier = a_host_tier(4, _SIZE)

    def put(number: int) -> None:
        slot = tier.reserve(_NAMES[number])
        assert slot is not None
        tier.complete(slot)

    for number in range(4):
        put(number)
    tier.unpin(tier.pin(_NAMES[:1]))
    put(4)
    assert [tier.num_found([name]) for name in _NAMES[:5]] == [1, 0, 1, 1, 1]
    held = tier.pin([_NAMES[2]])
    put(5)
    put(1)
    assert tier.num_found([_NAMES[2]]), "it is in use"
    tier.unpin(held)


class TierMachine(RuleBasedStateMachine):
    """Writers, readers, clears and damage in any order: a reader gets what was written under that name, and no slot is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.tier = a_host_tier(4, _SIZE)
        self.writing: list[tuple[int, int]] = []  # slot, number of the name
        self.reading: list[tuple[int, int]] = []
        self.damaged: set[int] = set()

    @rule(number=st.integers(0, 5))
    def reserve(self, number: int) -> None:
        if (slot := self.tier.reserve(_NAMES[number])) is not None:
            self.tier.bytes_of(slot)[0][:] = bytes([number]) * _SIZE
            self.damaged.discard(slot)
            self.writing.append((slot, number))

    @rule(data=st.data(), how=st.sampled_from(["complete", "expected", "wrong", "abandon"]))
    def end_writing(self, data: st.DataObject, how: str) -> None:
        if self.writing:
            slot, number = self.writing.pop(data.draw(st.integers(0, len(self.writing) - 1)))
            if how == "abandon":
                self.tier.abandon(slot)
            else:
                right = digest_of(_NAMES[number], [memoryview(bytes([number]) * _SIZE)])
                assert self.tier.complete(slot, {"complete": None, "expected": right, "wrong": b"?"}[how]) == (how != "wrong")

    @rule(number=st.integers(0, 5))
    def pin(self, number: int) -> None:
        self.reading += [(slot, number) for slot in self.tier.pin([_NAMES[number]])]

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        if self.reading:
            slot, number = data.draw(st.sampled_from(self.reading))
            is_right = bytes(self.tier.bytes_of(slot)[0]) == bytes([number]) * _SIZE
            assert self.tier.is_intact(slot) == is_right == (slot not in self.damaged)

    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        if self.reading:
            slot, _ = data.draw(st.sampled_from(self.reading))
            if slot not in self.damaged:
                self.tier.bytes_of(slot)[0][7] ^= 1
                self.damaged.add(slot)

    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        if self.reading:
            slot, _ = self.reading.pop(data.draw(st.integers(0, len(self.reading) - 1)))
            self.tier.unpin([slot])

    @rule()
    def clear(self) -> None:
        self.tier.clear()

    @invariant()
    def all_agree(self) -> None:
        self.tier.check_integrity()


TierMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestTierMachine = TierMachine.TestCase
