"""Which prefixes an engine holds, as far as this frontend knows: what the engine tells, and what was sent to it since."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from triptych.v1 import engine_pb2

#: How long a prompt that was sent counts as held, in seconds. By then the engine has told of its blocks, or has dropped them.
_EXPECTED_S = 10.0


class BlockIndex:
    """The blocks of one engine's prefix cache.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.held: set[int] = set()
        #: Tokens per block; 0 until the engine has told it.
        self.block_size = 0
        self._sequence = 0
        #: Blocks of prompts that were sent, in the order of these -> until when they count as held.
        self._expected: dict[int, float] = {}

    def update(self, response: engine_pb2.WatchBlocksResponse) -> bool:
        """Take a response of WatchBlocks. False if one before it is missing: then the caller must watch anew."""
        if response.is_whole:
            self.held, self.block_size = set(response.added), response.block_size
        elif response.sequence != self._sequence + 1:
            return False
        else:
            self.held.difference_update(response.removed)
            self.held.update(response.added)
            for block in response.added if self._expected else ():
                self._expected.pop(block, None)
        self._sequence = response.sequence
        return True

    def expect(self, blocks: Sequence[int]) -> None:
        """A prompt with these blocks was sent to the engine."""
        now_s = self._clock()
        while self._expected and self._expected[first := next(iter(self._expected))] < now_s:
            del self._expected[first]
        for block in blocks:
            if block not in self.held:
                self._expected.pop(block, None)
                self._expected[block] = now_s + _EXPECTED_S

    def num_held(self, blocks: Sequence[int]) -> int:
        """How many blocks of a prompt, from its beginning on, the engine holds or is about to."""
        held, expected = self.held, self._expected
        for number, block in enumerate(blocks):
            if block not in held and (block not in expected or expected[block] < self._clock()):
                return number
        return len(blocks)

    def clear(self) -> None:
        """The engine was lost."""
        self.held.clear()
        self._expected.clear()
        self._sequence = 0
