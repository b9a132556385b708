"""Gives requests the slots of their recurrent states, and decides where snapshots are made: a second group beside the KV blocks.

A request's own slot follows its newest token. Snapshots are made at borders of blocks:
- at the last border of its prompt, for those that continue the prompt or send it again;
- at the last border of its output so far, for the next turn of the conversation. There is one of these at a time;
- where prompts branch: at the end of a prefix that another prompt has in common with it. That is known when the other one comes. If
  the first one is not computed by then, it makes the snapshot; else the second one, and the third finds it. A snapshot at each
  border would take more memory than the blocks themselves.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence

from triptych_engine.scheduling.cache.state_pool import StatePool
from triptych_engine.scheduling.request import Request

#: Most borders at which a snapshot is wanted that nobody has computed yet.
_MOST_WANTED = 1024


class StateCache:
    """The states of requests. `KVCacheManager` owns it.

    Args:
        num_slots: most states, of requests and of snapshots.
        block_size: tokens per block.
    """

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.pool = StatePool(num_slots)
        self._block_size = block_size
        self._wanted: OrderedDict[bytes, None] = OrderedDict()  # prefixes
        self._num_live: dict[bytes, int] = {}  # prefix -> live requests that begin with it

    def num_usable(self, hashes: Sequence[bytes]) -> int:
        """How many blocks of a cached prefix can be used: up to its last snapshot."""
        return next((number for number in range(len(hashes), 0, -1) if hashes[number - 1] in self.pool), 0)

    def add(self, request: Request, hashes: Sequence[bytes], num_cached: int) -> None:
        """A request comes. Where it branches off others, the next one that gets there makes a snapshot.

        Args:
            hashes: of its blocks.
            num_cached: how many of them, from the first on, are in the KV cache.
        """
        common = num_cached
        while common < len(hashes) and hashes[common] in self._num_live:
            common += 1
        if common:
            self._wanted[hashes[common - 1]] = None
            self._wanted.move_to_end(hashes[common - 1])
            if len(self._wanted) > _MOST_WANTED:
                self._wanted.popitem(last=False)
        request.num_live_blocks = len(hashes)
        for prefix in hashes:
            self._num_live[prefix] = self._num_live.get(prefix, 0) + 1

    def finish(self, request: Request) -> None:
        """A request has ended."""
        if request.output_snapshot is not None and request.output_snapshot in self.pool:
            self.pool.use(request.output_snapshot)
        for prefix in request.block_hashes[: request.num_live_blocks]:
            self._num_live[prefix] -= 1
            if not self._num_live[prefix]:
                del self._num_live[prefix]
        request.num_live_blocks = 0

    def allocate(self, request: Request, prefix: bytes | None) -> None:
        """Give a request a slot, which must be free. Sets `state_slot` and `state_source`.

        Args:
            prefix: whose snapshot its state begins with; None for none.
        """
        request.state_source = None if prefix is None else self.pool.use(prefix)
        slot = self.pool.take()
        if slot is None:
            raise AssertionError(f"there is no slot for the state of request {request.request_id}")
        request.state_slot = slot

    def snapshots(self, request: Request, start: int, end: int) -> list[tuple[int, int]]:
        """The snapshots to make while a request computes its tokens from `start` to `end`: pairs of the number of tokens before
        and a slot. Fewer if there are no slots."""
        size, hashes = self._block_size, request.block_hashes
        at_prompt_end = (request.num_prompt_tokens - 1) // size * size
        last = end // size * size
        made = []
        for border in range((start // size + 1) * size, end + 1, size):
            prefix = hashes[border // size - 1] if border // size <= len(hashes) else None
            if prefix is not None and prefix in self.pool:
                continue
            is_wanted = border == at_prompt_end or (border == last and border > at_prompt_end) or prefix in self._wanted
            if is_wanted and (slot := self.pool.take()) is not None:
                request.snapshots[border] = slot
                made.append((border, slot))
        return made

    def commit(self, request: Request) -> None:
        """The snapshots of tokens that a request has computed can be found from now on."""
        for border in [border for border in request.snapshots if border <= request.num_computed_tokens]:
            prefix = request.block_hashes[border // self._block_size - 1]
            is_new = self.pool.keep(request.snapshots.pop(border), prefix)
            self._wanted.pop(prefix, None)
            if is_new and border >= request.num_prompt_tokens:
                if request.output_snapshot is not None:
                    self.pool.drop(request.output_snapshot)
                request.output_snapshot = prefix
                self.pool.drop_first(prefix)  # until its answer is complete: the next one will be made soon

    def release(self, request: Request) -> None:
        """Take back a request's slot, and those of snapshots that were not made."""
        for slot in (*request.snapshots.values(), *([] if request.state_slot is None else [request.state_slot])):
            self.pool.give_back(slot)
        request.snapshots = {}
        request.state_slot = request.state_source = request.output_snapshot = None

    def check_integrity(self, requests: Collection[Request]) -> None:
        """Raise AssertionError unless the slots agree with what the requests hold. For tests."""
        taken = list[int]()
        for request in requests:
            taken += request.snapshots.values()
            if request.state_slot is not None:
                taken.append(request.state_slot)
        self.pool.check_integrity(taken)
        live = Counter(prefix for request in requests for prefix in request.block_hashes[: request.num_live_blocks])
        if live != self._num_live:
            raise AssertionError("the prefixes of live requests are not those that are counted")
