"""Assigns KV blocks to requests, and shares blocks of equal prefixes through the prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from triptych.errors import NeverFitsError
from triptych_common.model.blocks import hash_block, root_hash

from triptych_engine.kv_offload.host_tier import HostTier
from triptych_engine.scheduling.cache.block_copies import BlockCopies
from triptych_engine.scheduling.cache.block_pool import BlockPool
from triptych_engine.scheduling.cache.layer_groups import LayerGroups
from triptych_engine.scheduling.request import Request


class KVCacheManager:
    """Allocates blocks for requests and releases them.

    Args:
        num_blocks: total number of blocks.
        block_size: tokens per block.
        enable_prefix_caching: let requests share the blocks of equal prefixes.
        tier: keeps blocks that are evicted.
        offers_prompts: the tier gets all blocks of prompts as soon as they are computed, because other engines want them.
        groups: caches of layers that do not keep keys and values of all tokens; None for a model without them.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        tier: HostTier | None = None,
        *,
        offers_prompts: bool = False,
        groups: LayerGroups | None = None,
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        #: Between the cache and the tier; None without one.
        self.copies = None if tier is None else BlockCopies(self.pool, tier)
        self.groups = groups
        self._caching, self.offers_prompts = enable_prefix_caching, offers_prompts
        #: Hashes of blocks that running requests compute now -> the priority of the request.
        self._computing: dict[bytes, int] = {}
        #: Called with each of them that is computed, or given up.
        self.on_settled: Callable[[bytes], None] = lambda block_hash: None
        self.prefix_cache_queries = 0  # prompt tokens looked up since start
        self.prefix_cache_hits = 0  # prompt tokens found

    @property
    def capacity_tokens(self) -> int:
        """Length of the longest sequence that fits when no other sequence holds blocks."""
        return self.pool.num_blocks * self.block_size

    @property
    def num_free_blocks(self) -> int:
        """How full it is, for those who send requests: free blocks, or fewer if what other layers need is more nearly used up."""
        shares = () if self.groups is None else self.groups.free_of_all
        return min([self.pool.num_free_blocks, *(self.pool.num_blocks * free // every for free, every in shares)])

    def check(self, request: Request) -> None:
        """Raise NeverFitsError for a request that would not fit even alone."""
        # The last output token is never an input, so its keys and values are never stored.
        longest = request.num_prompt_tokens + max(0, request.sampling.max_tokens - 1)
        if longest > self.capacity_tokens:
            raise NeverFitsError(
                f"the request needs {longest} tokens of KV cache ({request.num_prompt_tokens} prompt and up to "
                f"{request.sampling.max_tokens} output tokens); the engine has {self.capacity_tokens} in all",
                field="prompt_token_ids" if request.num_prompt_tokens > self.capacity_tokens else "sampling.max_tokens",
                limit=self.capacity_tokens,
                value=longest,
            )

    def add(self, request: Request) -> None:
        """A request comes; it holds nothing yet."""
        if self.groups is not None:
            hashes = self.prefix_hashes(request)
            self.groups.add(request, hashes, len(self.pool.find_prefix(hashes)))

    def finish(self, request: Request) -> None:
        """A request has ended. It may hold blocks until the last of its steps has ended, too."""
        if self.groups is not None:
            self.groups.finish(request)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def find_cached_prefix(self, request: Request) -> list[int]:
        """Blocks of the request's longest cached prefix. It never includes the last token, because its logits must be computed."""
        hashes = self.prefix_hashes(request)
        blocks = self.pool.find_prefix(hashes)
        return blocks if self.groups is None else blocks[: self.groups.num_usable(hashes[: len(blocks)])]

    def awaited_block(self, request: Request, cached_blocks: list[int]) -> bytes | None:
        """The last of the blocks behind its cached prefix that a running request computes now, so that it need not compute them
        itself; None if there are none. Nobody waits for a request of a worse priority."""
        if not self._computing or not self._shares(request):
            return None
        awaited = None
        # Its last token is always its own.
        for block_hash in request.block_hashes[len(cached_blocks) : (request.num_tokens - 1) // self.block_size]:
            if self._computing.get(block_hash, request.priority + 1) <= request.priority:
                awaited = block_hash
            # What groups of layers have shortened is there for the others.
            elif self.groups is None or block_hash in self._computing or block_hash not in self.pool:
                break
        return awaited

    def num_offloaded(self, request: Request, cached_blocks: list[int]) -> int:
        """How many blocks behind its cached prefix the tier holds."""
        if self.copies is None:
            return 0
        return self.copies.tier.num_found(self.prefix_hashes(request)[len(cached_blocks) :])

    def load(self, request: Request, cached_blocks: list[int]) -> bytes | None:
        """Begin to load the blocks behind a request's cached prefix from the tier. Enough must be free. Returns the hash of the
        last one, which the request can wait for; None if they are no longer there."""
        if self.copies is None:
            raise AssertionError("there is no tier to load from")
        request.has_loaded = True
        first = len(cached_blocks)
        hashes = self.prefix_hashes(request)[first:]

        def on_loaded(blocks: Sequence[int]) -> None:
            for index, block in enumerate(blocks, first):
                if self.pool.cache(block, request.block_hashes[index]) and self.pool.records_events:
                    self._note_stored(request, index)
            self._settle(request, first, first + num_loading)

        num_loading = self.copies.load(cached_blocks, hashes, on_loaded)
        for block_hash in hashes[:num_loading]:
            self._computing.setdefault(block_hash, request.priority)
        return hashes[num_loading - 1] if num_loading else None

    def offer(self, request: Request, first: int, end: int) -> list[tuple[int, int]]:
        """Copies of a prompt's blocks that are full once its tokens up to `end` are computed, from block `first` on."""
        if self.copies is None or not self.offers_prompts or not self._shares(request):
            return []
        last = min(end, request.num_prompt_tokens) // self.block_size
        return self.copies.offer(request.block_ids[first:last], request.block_hashes[first:last])

    def held_prefix(self, hashes: Sequence[bytes]) -> int:
        """How many of a chain of blocks the cache and the tier hold, from its beginning on. May be called on any thread."""
        num_cached = len(self.pool.find_prefix(hashes))
        return num_cached + (0 if self.copies is None else self.copies.tier.num_found(hashes[num_cached:]))

    def prefix_hashes(self, request: Request) -> list[bytes]:
        """The names of the blocks that a request can share, in order. May be called before the request is added."""
        if not self._shares(request):
            return []
        self._extend_hashes(request)
        return request.block_hashes[: (request.num_tokens - 1) // self.block_size]

    def can_allocate(self, request: Request, cached_blocks: list[int]) -> bool:
        """Whether enough is free for all tokens of a request that holds nothing."""
        return self.has_room(request, self.num_free_blocks_for(request, cached_blocks))

    def has_room(self, request: Request, num_blocks: int) -> bool:
        """Whether a request that takes this many free blocks can be admitted."""
        return num_blocks <= self.pool.num_free_blocks and (self.groups is None or self.groups.has_room(request))

    def has_room_for_both(self, first: Request, other: Request) -> bool:
        """Whether two waiting requests can be admitted, of which nothing is cached."""
        num_blocks = self.num_blocks_for(first.num_tokens) + self.num_blocks_for(other.num_tokens)
        return num_blocks <= self.pool.num_free_blocks and (self.groups is None or self.groups.has_room(first, other))

    def num_free_blocks_for(self, request: Request, cached_blocks: list[int]) -> int:
        """How many free blocks a request takes that holds none."""
        return self.num_blocks_for(request.num_tokens) - len(cached_blocks) + self.pool.num_free_among(cached_blocks)

    def allocate(self, request: Request, cached_blocks: list[int]) -> None:
        """Give a request without blocks its cached prefix, and new blocks for its other tokens. Requires `can_allocate`.

        Sets `block_ids`, `num_computed_tokens` and, the first time, `num_cached_tokens`.
        """
        if not self.can_allocate(request, cached_blocks):
            raise AssertionError(f"there are not enough blocks for request {request.request_id}")
        if self.groups is not None:
            self.groups.allocate(request, request.block_hashes[: len(cached_blocks)])
        self.pool.hold(cached_blocks)
        fresh = self.pool.allocate(self.num_blocks_for(request.num_tokens) - len(cached_blocks))
        if fresh is None:
            raise AssertionError("blocks that were counted as free could not be allocated")
        request.block_ids = cached_blocks + fresh
        request.num_computed_tokens = len(cached_blocks) * self.block_size
        if self._shares(request):
            for block_hash in request.block_hashes[len(cached_blocks) :]:
                self._computing.setdefault(block_hash, request.priority)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
            self.prefix_cache_queries += len(request.token_ids)
            self.prefix_cache_hits += request.num_computed_tokens

    def advance(self, request: Request, num_tokens: int, num_drafts: int) -> tuple[list[int], list[tuple[int, int]]]:
        """See `LayerGroups.advance`; empty for a model without such layers."""
        if self.groups is None:
            return [], []
        return self.groups.advance(request, num_tokens, num_drafts, makes_snapshots=self._shares(request))

    def num_missing_blocks(self, request: Request) -> int:
        """How many more blocks a running request needs for its newest tokens."""
        return max(0, self.num_blocks_for(request.num_tokens) - len(request.block_ids))

    def grow(self, request: Request) -> list[int]:
        """Allocate the blocks that a running request lacks for its newest tokens, often none. Returns them. They must be free."""
        missing = self.num_missing_blocks(request)
        if not missing:
            return []
        blocks = self.pool.allocate(missing)
        if blocks is None:
            raise AssertionError(f"request {request.request_id} needs {missing} blocks, {self.pool.num_free_blocks} are free")
        request.block_ids += blocks
        return blocks

    def grow_ahead(self, request: Request, num_ahead: int, max_blocks: int) -> tuple[int, list[int]]:
        """Allocate blocks for tokens that a step may compute after the newest one.

        Args:
            num_ahead: number of such tokens.
            max_blocks: maximum number of blocks to allocate.

        Returns:
            How many tokens there are blocks for, and the new blocks among these.
        """
        missing = self.num_blocks_for(request.num_tokens + num_ahead) - len(request.block_ids)
        blocks = self.pool.allocate(max(0, min(missing, max_blocks, self.pool.num_free_blocks))) or []
        request.block_ids += blocks
        return min(num_ahead, len(request.block_ids) * self.block_size - request.num_tokens), blocks

    def commit(self, request: Request, num_newly_computed: int) -> None:
        """Record that tokens were computed. Blocks that are now full can be shared from now on."""
        first_full = request.num_computed_tokens // self.block_size
        request.num_computed_tokens += num_newly_computed
        last_full = request.num_computed_tokens // self.block_size if self._caching else first_full
        if last_full > first_full:
            self._extend_hashes(request)
            for index in range(first_full, last_full):
                is_new = self.pool.cache(request.block_ids[index], request.block_hashes[index])
                if is_new and self.pool.records_events:
                    self._note_stored(request, index)
        if self.groups is not None:
            self.groups.commit(request, first_full, last_full)
        if last_full > first_full:
            self._settle(request, first_full, last_full)

    def _note_stored(self, request: Request, index: int) -> None:
        start = index * self.block_size
        self.pool.note_stored(
            request.block_hashes[index],
            request.block_hashes[index - 1] if index else None,
            request.token_ids[start : start + self.block_size],
            request.media.extra_keys(start, start + self.block_size) if start < request.media.end else (),
            request.cache_salt,
        )

    def release(self, request: Request) -> None:
        """Release all blocks of a request. Their cached prefixes can be found until the blocks are allocated again."""
        self.pool.release(request.block_ids)
        if self.groups is not None:
            self.groups.release(request)
        self._settle(request, request.num_computed_tokens // self.block_size, len(request.block_hashes))
        request.block_ids = []
        request.num_computed_tokens = 0

    def reset(self) -> int:
        """Drop all cached prefixes, and give up loads from the tier. Returns how many were dropped."""
        if self.copies is not None:
            self.copies.cancel()
        if self.groups is not None:
            self.groups.reset()
        return self.pool.reset_cache()

    def _shares(self, request: Request) -> bool:
        """Whether a request uses blocks that others have computed."""
        return self._caching and request.sampling.prompt_logprobs is None and request.pooling is None

    def _settle(self, request: Request, first: int, last: int) -> None:
        """Nobody waits for these blocks of a request any more."""
        for block_hash in request.block_hashes[first:last] if self._computing else ():
            if self._computing.pop(block_hash, None) is not None:
                self.on_settled(block_hash)

    def _extend_hashes(self, request: Request) -> None:
        hashes, size = request.block_hashes, self.block_size
        while (len(hashes) + 1) * size <= len(request.token_ids):
            start = len(hashes) * size
            parent = hashes[-1] if hashes else root_hash(request.cache_salt)
            media = request.media.fingerprint(start, start + size) if start < request.media.end else b""
            hashes.append(hash_block(parent, request.token_ids[start : start + size], media))
