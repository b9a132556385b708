"""The caches of layers that do not keep keys and values of all tokens, beside the blocks of those that do: blocks of a window,
recurrent states, and keys and values of an encoder's states. (vLLM calls them KV cache groups.)"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from triptych_engine.scheduling.cache.cross_cache import CrossCache
from triptych_engine.scheduling.cache.state_cache import StateCache
from triptych_engine.scheduling.cache.window_cache import WindowCache
from triptych_engine.scheduling.request import Request


class LayerGroups:
    """All of them, of which a model has one at least. `KVCacheManager` owns them."""

    def __init__(self, windows: WindowCache | None, states: StateCache | None, cross: CrossCache | None = None) -> None:
        self.windows, self.states, self.cross = windows, states, cross

    @property
    def free_of_all(self) -> list[tuple[int, int]]:
        """How much is free, and how much there is: of blocks of windows, and of slots for an encoder's states."""
        shares = []
        if self.windows is not None:
            shares.append((self.windows.pool.num_blocks - self.windows.num_reserved, self.windows.pool.num_blocks))
        if self.cross is not None:
            shares.append((self.cross.num_free, self.cross.num_slots))
        return shares

    def num_usable(self, hashes: Sequence[bytes]) -> int:
        """How many blocks of a cached prefix all groups can use."""
        number = -1
        while number != len(hashes):  # each may shorten it
            number = len(hashes)
            if self.windows is not None:
                hashes = hashes[: self.windows.num_usable(hashes)]
            if self.states is not None:
                hashes = hashes[: self.states.num_usable(hashes)]
        return number

    def has_room(self, *requests: Request) -> bool:
        """Whether all of these can be admitted."""
        has_states = self.states is None or self.states.pool.num_free >= len(requests)
        has_slots = self.cross is None or self.cross.has_room(*requests)
        return has_states and has_slots and (self.windows is None or self.windows.has_room(*requests))

    def add(self, request: Request, hashes: Sequence[bytes], num_cached: int) -> None:
        """A request comes. hashes: of its blocks; num_cached: how many of them, from the first on, are in the KV cache."""
        if self.states is not None and hashes:
            self.states.add(request, hashes, num_cached)

    def finish(self, request: Request) -> None:
        """A request has ended. It may hold something until the last of its steps has ended, too."""
        if self.states is not None:
            self.states.finish(request)

    def allocate(self, request: Request, hashes: Sequence[bytes]) -> None:
        """Give a request what it needs besides KV blocks. There must be room.

        Args:
            hashes: of the blocks of its cached prefix.
        """
        if self.states is not None:
            self.states.allocate(request, hashes[-1] if hashes else None)
        if self.windows is not None:
            self.windows.allocate(request, hashes)
        if self.cross is not None:
            self.cross.allocate(request)

    def advance(
        self, request: Request, num_tokens: int, num_drafts: int, *, makes_snapshots: bool
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """What a step needs to compute a request's next tokens: new blocks of the window, and the snapshots to make."""
        start = request.num_scheduled_tokens
        end = start + num_tokens
        blocks = [] if self.windows is None else self.windows.advance(request, end + num_drafts)
        snapshots = self.states.snapshots(request, start, end) if self.states is not None and makes_snapshots else []
        return blocks, snapshots

    def commit(self, request: Request, first_full: int, last_full: int) -> None:
        """Tokens were computed. Blocks from `first_full` to before `last_full` are now full, often none."""
        if last_full > first_full:
            if self.windows is not None:
                self.windows.commit(request, first_full, last_full)
            if self.states is not None:
                self.states.commit(request)
        if self.windows is not None:
            self.windows.settle(request)
        if self.cross is not None:
            self.cross.commit(request)

    def release(self, request: Request) -> None:
        """Take back all that a request has."""
        for group in (self.windows, self.states, self.cross):
            if group is not None:
                group.release(request)

    def reset(self) -> None:
        """Drop all that is cached."""
        if self.windows is not None:
            self.windows.pool.reset_cache()
        if self.states is not None:
            self.states.pool.reset()
        if self.cross is not None:
            self.cross.reset()

    def check_integrity(self, requests: Collection[Request]) -> None:
        """Raise AssertionError unless the groups agree with what the requests hold. For tests."""
        for group in (self.windows, self.states, self.cross):
            if group is not None:
                group.check_integrity(requests)
