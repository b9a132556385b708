"""Policy: the seats and KV blocks that no tenant may take from those that hold few. It changes no state.

Without it, a tenant that sends many requests would hold all of both, and another tenant's request would wait until one of them
ends.
"""

from __future__ import annotations

from collections.abc import Collection

from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.request import Request
from triptych_engine.scheduling.states import RequestStates

#: The reserve is this part of the seats, and of the blocks.
_PART = 8
#: With fewer seats than this, none is kept free.
_MIN_SEATS = 4


class TenantReserve:
    """Decides whether a tenant may take more, while several tenants send requests. A tenant that is alone may take everything.

    Args:
        max_num_seqs: the seats: the maximum number of running requests.
    """

    def __init__(self, states: RequestStates, kv_cache: KVCacheManager, max_num_seqs: int) -> None:
        self._states, self._kv_cache, self._max_num_seqs = states, kv_cache, max_num_seqs
        self._num_seats = max(1, max_num_seqs // _PART) if max_num_seqs >= _MIN_SEATS else 0
        self._num_blocks = kv_cache.pool.num_blocks // _PART

    def may_admit(self, request: Request, num_blocks: int, passed: Collection[Request]) -> bool:
        """Whether a waiting request may take a free seat, and this many free blocks.

        Args:
            passed: other tenants' requests that are before it in the queue, but have to wait. Beside these it may use the reserve
                only.
        """
        states = self._states
        if not states.running or not states.waiting.has_several_tenants:
            return not passed
        own = [one for one in states.running if one.tenant == request.tenant]
        has_few_seats = len(own) < self._num_seats
        has_few_blocks = sum(len(one.block_ids) for one in own) + num_blocks <= self._num_blocks
        if passed:
            return has_few_seats and has_few_blocks and all(self._may_pass(one, num_blocks) for one in passed)
        num_free_blocks = self._kv_cache.pool.num_free_blocks
        leaves_seats = self._max_num_seqs - len(states.running) > self._num_seats
        leaves_blocks = num_free_blocks - num_blocks >= self._num_blocks
        return (leaves_seats or has_few_seats) and (leaves_blocks or has_few_blocks)

    def _may_pass(self, held: Request, num_blocks: int) -> bool:
        """Whether a request may take this many blocks before one that has to wait.

        Later requests of others, all together, take no more than the reserve before it. Otherwise many tenants that each hold
        little would keep it from its blocks forever. A tenant that holds more than the reserve already has its turn.
        """
        states = self._states
        own = sum(len(one.block_ids) for one in states.running if one.tenant == held.tenant)
        if own > self._num_blocks:
            return True
        later = [one for one in states.running if one.tenant != held.tenant and one.arrival > held.arrival]
        return sum(len(one.block_ids) for one in later) + num_blocks <= self._num_blocks and self._leave_windows(later)

    def may_be_passed(self, request: Request) -> bool:
        """Whether other tenants' requests may be admitted before one that has to wait.

        One that needs nearly all blocks would wait forever, if others always held some.
        """
        num_blocks = self._kv_cache.num_blocks_for(request.num_tokens)
        fits = num_blocks + 2 * self._num_blocks <= self._kv_cache.pool.num_blocks
        windows = None if self._kv_cache.groups is None else self._kv_cache.groups.windows
        if windows is not None:
            fits = fits and windows.most_blocks(request) * _PART <= (_PART - 2) * windows.pool.num_blocks
        return self._states.waiting.has_several_tenants and fits

    def _leave_windows(self, later: Collection[Request]) -> bool:
        """Whether these requests have reserved less than the reserve of the blocks of windows."""
        windows = None if self._kv_cache.groups is None else self._kv_cache.groups.windows
        return windows is None or sum(one.window_reserved for one in later) * _PART < windows.pool.num_blocks

    def victims(self) -> list[Request]:
        """The running requests to preempt, in order: of those with the lowest priority, those of one tenant, the newest first.

        It is the tenant that holds most blocks, of those with several requests. If each has one, it is that of the newest: a long
        request that is the only one of its tenant would otherwise lose its blocks to every newer one.
        """
        last = self._states.running[-1]
        lowest = [one for one in reversed(self._states.running) if one.priority == last.priority]
        held = dict[str, list[int]]()
        for one in lowest:
            held.setdefault(one.tenant, []).append(len(one.block_ids))
        several = {tenant: sum(blocks) for tenant, blocks in held.items() if len(blocks) > 1}
        chosen = max(several, key=several.__getitem__) if several else lowest[0].tenant
        return [one for one in lowest if one.tenant == chosen]
