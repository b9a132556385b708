"""Which tokens of requests with media can be computed now, and which embeddings are fetched for whom, in what order.

Items are held in the order of the prompt, requests in the order of their rank: running ones first, then by priority and arrival.
Where room lacks, a request takes it from those behind it in rank, which then wait for it again. So the first in rank always gets
what it needs next, and no two requests wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from triptych_common.rpc.errors import NeverFitsError, TriptychError

from triptych_engine.media.cache import EmbeddingCache
from triptych_engine.media.item import EmbeddingSlice, MediaItem
from triptych_engine.scheduling.request import Request, RequestStatus


@dataclass(slots=True)
class _Need:
    """What a request still needs."""

    request: Request
    start: int  # the first token that is not computed yet, when it was last known
    missing: deque[MediaItem]  # not held yet, in the order of the prompt

    @property
    def rank(self) -> tuple[bool, tuple[int, int]]:
        """Smaller comes first."""
        return self.request.status is not RequestStatus.RUNNING, self.request.queue_key


class MediaGate:
    """Owns the embedding cache. One per scheduler.

    Args:
        cache: room for embeddings.
        max_span: tokens that one step can compute.
        worthwhile: so many tokens before an item are computed before its embeddings are there.
        max_stalled: requests that may hold blocks while their next embeddings are not there.
        max_stalled_blocks: KV blocks that they may hold.
    """

    def __init__(self, cache: EmbeddingCache, *, max_span: int, worthwhile: int, max_stalled: int, max_stalled_blocks: int) -> None:
        self.cache = cache
        self._max_span = max_span
        self._worthwhile = worthwhile
        self._max_stalled, self._max_stalled_blocks = max_stalled, max_stalled_blocks
        self.parked: dict[str, Request] = {}  # request_id -> waiting request that has nothing to compute
        self._needs: dict[str, _Need] = {}  # request_id -> what it needs, of live requests with media
        self._changed = False  # since requests were last given room

    def check(self, request: Request) -> None:
        """Raise NeverFitsError for a request whose items could never be held, or whose spans never be computed."""
        capacity, media = self.cache.capacity_tokens, request.media
        groups = [[item] for item in media.items]
        for span in media.spans:
            if span.end - span.start > self._max_span:
                message = (
                    f"the prompt has {span.end - span.start} tokens that all see each other and are computed in one step; "
                    f"a step takes {self._max_span} (max_num_batched_tokens)"
                )
                raise NeverFitsError(message, field="placeholders", limit=self._max_span, value=span.end - span.start)
            groups.append(list(dict.fromkeys(p.item for p in media.overlapping(span.start, span.end))))
        for group in groups:
            num_tokens = sum({(item.key, item.num_tokens): item.num_tokens for item in group}.values())
            if num_tokens > capacity:
                message = (
                    f"media[{group[0].index}] needs room for {num_tokens} embeddings at once; the engine has it for {capacity} "
                    "(embedding_cache_memory)"
                )
                raise NeverFitsError(message, field=f"media[{group[0].index}]", limit=capacity, value=num_tokens)

    def want(self, request: Request, start: int) -> None:
        """Begin anew for a request: it needs the items that have tokens from `start` on, and holds none."""
        need = self._needs.get(request.request_id)
        if need is None:
            need = _Need(request, start, deque())
        self.release(request)
        need.start = start
        need.missing = deque(dict.fromkeys(p.item for p in request.media.placeholders if p.end > start))
        if need.missing:
            self._needs[request.request_id] = need

    def expect_start(self, request: Request, start: int) -> None:
        """Note where a waiting request would start now; its cached prefix may be another than when it came."""
        need = self._needs.get(request.request_id)
        if need is not None and start >= need.start:
            self._advance(need, start)
        elif start < request.media.end:
            self.want(request, start)

    def keep_up(self, request: Request) -> None:
        """Let go of the items whose tokens are all computed."""
        need = self._needs.get(request.request_id)
        if need is not None:
            self._advance(need, request.num_computed_tokens)

    def _advance(self, need: _Need, start: int) -> None:
        if start == need.start:
            return
        done = [item for item in need.request.media.items if need.start < item.end <= start]
        need.start = start
        for item in done:
            self.cache.release(item)
        if done:
            self._changed = True
            need.missing = deque(item for item in need.missing if item.end > start)
        if start >= need.request.media.end:
            del self._needs[need.request.request_id]

    def release(self, request: Request) -> None:
        """Let go of everything."""
        if self._needs.pop(request.request_id, None) is not None:
            for item in request.media.items:
                self.cache.release(item)
        self._changed = True

    def forget(self, request: Request) -> None:
        """Note that a request has ended."""
        self.parked.pop(request.request_id, None)
        self.release(request)

    def num_computable(self, request: Request, start: int) -> int:
        """How many tokens from `start` can be computed with the embeddings that are there, in whole spans."""
        media = request.media
        num_tokens = request.num_tokens - start
        for placeholder in media.overlapping(start, media.end):
            if self.cache.embeddings(placeholder.item) is None:
                num_tokens = max(0, placeholder.offset - start)
                break
        return media.whole_spans(start, num_tokens)

    def has_next(self, request: Request, start: int) -> bool:
        """Whether the embeddings that the request needs first, from `start` on, are there."""
        ahead = request.media.overlapping(start, request.media.end)
        return not ahead or self.num_computable(request, start) > max(0, ahead[0].offset - start)

    def is_ready(self, request: Request) -> bool:
        """Whether a waiting request has something to compute: its next embeddings are there, or enough tokens before them."""
        need = self._needs.get(request.request_id)
        start = request.media.end if need is None else need.start
        return self.has_next(request, start) or self.num_computable(request, start) >= self._worthwhile

    def may_start(self, request: Request, start: int, num_blocks: int) -> bool:
        """Whether a waiting request shall be given blocks, to compute from `start` on what its embeddings allow."""
        self.expect_start(request, start)
        if self.has_next(request, start):
            return True
        # Text before an item is computed while the item is encoded, but those who then wait must leave room for others.
        running = [need for need in self._needs.values() if need.request.status is RequestStatus.RUNNING]
        stalled = [need.request for need in running if not self.has_next(need.request, need.start)]
        num_held = sum(len(one.block_ids) for one in stalled)
        fits = len(stalled) < self._max_stalled and num_held + num_blocks <= self._max_stalled_blocks
        return fits and self.num_computable(request, start) >= self._worthwhile

    def park(self, request: Request) -> None:
        """Keep a waiting request until its embeddings are there."""
        self.parked[request.request_id] = request

    def unpark(self, requests: Iterable[Request]) -> list[Request]:
        """Those of the requests that are parked and have something to compute now; they are parked no more."""
        ready = {one.request_id: one for one in requests if one.request_id in self.parked and self.is_ready(one)}
        for request_id in ready:
            del self.parked[request_id]
        return list(ready.values())

    def slices(self, request: Request, start: int, num_tokens: int) -> list[EmbeddingSlice]:
        """The embeddings that stand for tokens of a step, which must be there."""
        slices = []
        for placeholder in request.media.overlapping(start, start + num_tokens):
            embeddings = self.cache.embeddings(placeholder.item)
            if embeddings is None:
                raise AssertionError(f"request {request.request_id} computes tokens whose embeddings are not there")
            first, last = max(start, placeholder.offset), min(start + num_tokens, placeholder.end)
            slices.append(EmbeddingSlice(first, last - first, placeholder.first_row + first - placeholder.offset, embeddings))
        return slices

    # -- fetching -----------------------------------------------------------------------------------------------------------------

    def acquire(self) -> list[Request]:
        """Give room to those who need it, in order; returns the requests for which embeddings were there already."""
        served = []
        while self._changed:  # again after room was taken from some
            self._changed = False
            for need in sorted((need for need in self._needs.values() if need.missing), key=lambda need: need.rank):
                while need.missing and self._hold(need.missing[0], need):
                    if self.cache.embeddings(need.missing.popleft()) is not None:
                        served.append(need.request)
                if need.missing:
                    break  # nobody behind takes the room that this one waits for
        return served

    def _hold(self, item: MediaItem, need: _Need) -> bool:
        if self.cache.has_room(item):
            return self.cache.hold(item, need.request)
        holders = [self._needs[request.request_id] for request in self.cache.holders()]
        for victim in sorted(holders, key=lambda holder: holder.rank, reverse=True):
            if victim.rank <= need.rank:
                break
            self.want(victim.request, victim.start)
            if self.cache.has_room(item):
                return self.cache.hold(item, need.request)
        return False

    def fail(self, number: int, error: TriptychError) -> list[tuple[Request, TriptychError]]:
        """Note that a fetch failed; returns the requests that fail with it."""
        self._changed = True
        return self.cache.fail(number, error)

    def check_integrity(self, live: set[Request]) -> None:
        """Raise AssertionError unless needs and cache agree. For tests."""
        if not {need.request for need in self._needs.values()} <= live:
            raise AssertionError("a request that ended needs embeddings")
        if not self.cache.holders() <= {need.request for need in self._needs.values()}:
            raise AssertionError("a request that needs none holds embeddings")
        if not set(self.parked.values()) <= live:
            raise AssertionError("a request that ended is parked")
        self.cache.check_integrity(live)
