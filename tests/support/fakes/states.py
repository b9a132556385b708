"""Recurrent states without a model: in place of numbers, a slot has what they depend on, the prefix after which it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from triptych_engine.scheduling.output import NewSequence


class FakeStates:
    """The slots of a `FakeRunner`. A state that is a stranger's, or that of another position, fails a test at once."""

    def __init__(self) -> None:
        self._after: dict[int, int] = {}  # slot -> hash of the prefix
        self.num_snapshots = 0

    def begin(self, new: Sequence[NewSequence]) -> None:
        """Make the copies with which sequences begin, in their order."""
        for sequence in new:
            if sequence.state_slot is not None:
                assert (sequence.state_source is None) == (sequence.num_computed_tokens == 0)
                if sequence.state_source is not None:
                    self._after[sequence.state_slot] = self._after[sequence.state_source]

    def compute(
        self, sequence: NewSequence, start: int, end: int, snapshots: Sequence[tuple[int, int]], prefix: Callable[[int], int]
    ) -> None:
        """Go on from token `start` to `end`.

        Args:
            prefix: the hash of a sequence up to a position.
        """
        if sequence.state_slot is None:
            assert not snapshots
            return
        if start:
            assert self._after[sequence.state_slot] == prefix(start - 1), f"{sequence.request_id} has another prefix' state"
        for border, slot in snapshots:
            assert start < border <= end
            assert slot != sequence.state_slot
            self._after[slot] = prefix(border - 1)
            self.num_snapshots += 1
        self._after[sequence.state_slot] = prefix(end - 1)

    def clear(self) -> None:
        """Lose all."""
        self._after.clear()
