"""The blocks of layers that attend to a window of the last tokens only: a second group beside the blocks of all tokens.

A request holds the blocks of its window and of the tokens that a step computes. Those behind the window are released, and can be
found by their hashes until they are allocated again. When it is admitted, a request reserves as many blocks as it can ever hold at
once, so that it never waits for one while it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from triptych_engine.scheduling.cache.block_pool import BlockPool
from triptych_engine.scheduling.cache.window_blocks import KEYS_AT_ONCE, blocks_of_window
from triptych_engine.scheduling.request import Request

#: Draft tokens that a step may compute for a decoding request: MAX_DRAFT_TOKENS of speculation/drafter.py.
_MOST_AHEAD = 16


class WindowCache:
    """The window blocks of requests. `KVCacheManager` owns it.

    Args:
        num_blocks: enough for one request, see `blocks_of_window`.
        block_size: tokens per block.
        window: number of tokens that a token attends to, including itself.
        max_step_tokens: most tokens that the steps in flight compute of one request.
        keys_at_once: keys are read from a multiple of so many on.
    """

    def __init__(
        self, num_blocks: int, block_size: int, window: int, max_step_tokens: int, keys_at_once: int = KEYS_AT_ONCE
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self._block_size, self._window, self._max_step_tokens = block_size, window, max_step_tokens
        self._keys_at_once = keys_at_once
        self.num_reserved = 0

    def num_usable(self, hashes: Sequence[bytes]) -> int:
        """How many blocks of a cached prefix can be used: the window of the token behind them must be here."""
        number = len(hashes)
        while number:
            first = self._first_block(number * self._block_size)
            num_found = len(self.pool.find_prefix(hashes[first:number]))
            if num_found == number - first:
                break
            number = first + num_found  # what is longer needs the block that is missing
        return number

    def has_room(self, *requests: Request) -> bool:
        """Whether all of these can be admitted."""
        return self.num_reserved + sum(map(self.most_blocks, requests)) <= self.pool.num_blocks

    def allocate(self, request: Request, hashes: Sequence[bytes]) -> None:
        """Reserve blocks for a request, for which there must be room, and let it hold those of its cached prefix.

        Args:
            hashes: of the blocks of the prefix.
        """
        request.window_reserved = self.most_blocks(request)
        self.num_reserved += request.window_reserved
        first = self._first_block(len(hashes) * self._block_size)
        found = self.pool.find_prefix(hashes[first:])
        self.pool.hold(found)
        request.window_block_ids = [-1] * first + found
        request.first_window_block = first

    def advance(self, request: Request, end: int) -> list[int]:
        """Let a request hold the blocks to compute its tokens up to `end`. Returns the new ones."""
        fresh = self.pool.allocate(max(0, -(-end // self._block_size) - len(request.window_block_ids)))
        if fresh is None:
            raise AssertionError(f"blocks that were reserved for request {request.request_id} are not free")
        request.window_block_ids += fresh
        return fresh

    def commit(self, request: Request, first_full: int, last_full: int) -> None:
        """Blocks that are now full, from `first_full` to before `last_full`, can be found."""
        for index in range(max(first_full, request.first_window_block), last_full):
            self.pool.cache(request.window_block_ids[index], request.block_hashes[index])

    def settle(self, request: Request) -> None:
        """A request has computed tokens. Release what is behind the window of those that come next."""
        self._release(request, self._first_block(request.num_computed_tokens))
        if request.window_reserved > (most := self.most_blocks(request)):
            self.num_reserved -= request.window_reserved - most
            request.window_reserved = most

    def release(self, request: Request) -> None:
        """Release all blocks of a request, and what it reserved."""
        self._release(request, len(request.window_block_ids))
        self.num_reserved -= request.window_reserved
        request.window_block_ids, request.first_window_block, request.window_reserved = [], 0, 0

    def _release(self, request: Request, first: int) -> None:
        """Release the blocks before this one."""
        before, first = request.first_window_block, min(first, len(request.window_block_ids))
        if first > before:
            self.pool.release(request.window_block_ids[before:first])
            request.window_block_ids[before:first] = [-1] * (first - before)
            request.first_window_block = first

    def _first_block(self, position: int) -> int:
        """The first block that is read for the token at a position."""
        first = max(0, position - self._window + 1)
        return first // self._keys_at_once * self._keys_at_once // self._block_size

    def most_blocks(self, request: Request) -> int:
        """How many blocks a request holds at most at once, from now on."""
        num_left = request.num_tokens - request.num_computed_tokens
        at_once = min(self._max_step_tokens, max(num_left, 1 + _MOST_AHEAD))
        window = blocks_of_window(self._window, at_once, self._block_size, self._keys_at_once)
        return min(window, -(-request.max_num_tokens // self._block_size))

    def check_integrity(self, requests: Collection[Request]) -> None:
        """Raise AssertionError unless the blocks agree with what the requests hold and have reserved. For tests."""
        held = [[block for block in request.window_block_ids if block >= 0] for request in requests]
        self.pool.check_integrity(held)
        if sum(request.window_reserved for request in requests) != self.num_reserved:
            raise AssertionError("the reserved blocks are not those of the requests")
        for request, blocks in zip(requests, held, strict=True):
            if len(blocks) > request.window_reserved:
                raise AssertionError(f"request {request.request_id} holds {len(blocks)} of {request.window_reserved} blocks")
