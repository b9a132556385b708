"""Which embeddings each live request with media needs, holds and keeps.

A request gets its items in the order of the prompt. Requests are served in the order of their rank: running ones first, then by
priority and arrival. When the embedding budget is full, a request evicts the embeddings of lower-ranked requests. Those requests
fetch them again later. So the highest-ranked request always gets what it needs next, and no two requests wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from triptych.errors import TriptychError

from triptych_engine.media.cache import EmbeddingCache
from triptych_engine.media.item import MediaItem, PromptMedia


class MediaRequest(Protocol):
    """The part of a request that this package reads. The package changes nothing in a request."""

    @property
    def request_id(self) -> str: ...
    @property
    def media(self) -> PromptMedia: ...
    @property
    def block_ids(self) -> Sequence[int]: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def is_running(self) -> bool: ...
    @property
    def queue_key(self) -> tuple[int, int]: ...


@dataclass(slots=True)
class Need:
    """What one request still needs."""

    request: MediaRequest
    start: int  # the first token that is not computed yet, as of the last update
    missing: deque[MediaItem] = field(default_factory=deque)  # not held yet, in the order of the prompt
    computed: set[MediaItem] = field(default_factory=set)  # items whose tokens were all computed at least once


def _needed(request: MediaRequest, start: int) -> Iterable[MediaItem]:
    """The items that a request needs to be computed from `start` on, in the order of the prompt."""
    if request.media.is_beside:
        return () if request.is_running else request.media.items
    return dict.fromkeys(p.item for p in request.media.placeholders if p.end > start)


class MediaNeeds:
    """Manages the users and keepers of the embedding cache's entries.

    Args:
        cache: holds the embeddings.
    """

    def __init__(self, cache: EmbeddingCache) -> None:
        self.cache = cache
        #: Whether a request goes before all others that wait. Those that are tried alone do: meanwhile nothing else is computed, so
        #: the others would never give their room back.
        self.goes_first: Callable[[MediaRequest], bool] = lambda request: False
        self._needs: dict[str, Need] = {}  # request_id -> need of a live request with media
        self._changed = False  # since the last `acquire`

    def start_of(self, request: MediaRequest) -> int:
        """The first token of the request that is not computed yet, as of the last update."""
        return self._needs[request.request_id].start

    def running(self) -> list[Need]:
        """The needs of running requests."""
        return [need for need in self._needs.values() if need.request.is_running]

    def can_recompute(self, request: MediaRequest) -> bool:
        """Whether the embeddings of all items are here, so that the request can be computed again from its first token."""
        return all(self.cache.has(item) for item in request.media.items)

    def want(self, request: MediaRequest, start: int) -> None:
        """Reset a request: it needs all items that have tokens from `start` on, and uses none. Items that it has computed before
        are kept."""
        need = self._needs.setdefault(request.request_id, Need(request, start))
        for item in request.media.items:
            if item not in need.computed or not self.cache.keep(item, request.request_id):
                self.cache.release(item)
        need.start = start
        need.missing = deque(_needed(request, start))
        self._changed = True

    def restart(self, request: MediaRequest, start: int) -> None:
        """Record that a waiting request would start at `start`. Its cached prefix may have changed since it arrived."""
        need = self._needs[request.request_id]
        if request.media.is_beside:  # it needs them wherever it starts
            need.start = start
        elif start < need.start:
            if any(start < item.end <= need.start for item in request.media.items):
                self.want(request, start)
            else:  # no further items are needed; items in use stay in use, as they may be computed next
                need.start = start
        elif start > need.start:
            self._let_go(need, [item for item in request.media.items if need.start < item.end <= start], start)

    def admit(self, request: MediaRequest, start: int) -> None:
        """Record that a request runs, and that its tokens before `start` are in the prefix cache. The embeddings of these tokens
        are kept if they are here."""
        self.restart(request, start)
        need = self._needs[request.request_id]
        if not request.media.is_beside:
            self._keep(need, [item for item in request.media.items if item.end <= start], start)

    def advance(self, request: MediaRequest, start: int) -> None:
        """Record that a running request has computed all tokens before `start`."""
        need = self._needs[request.request_id]
        if request.media.is_beside:
            if not need.computed.issuperset(request.media.items):  # after its first step, which has made all that depends on them
                self._keep(need, list(request.media.items), start)
        elif need.start < request.media.end:
            self._keep(need, [item for item in request.media.items if need.start < item.end <= start], start)

    def forget(self, request: MediaRequest) -> None:
        """Release everything that an ended request holds."""
        if self._needs.pop(request.request_id, None) is not None:
            for item in request.media.items:
                self.cache.release(item)
            self._changed = True

    def _keep(self, need: Need, items: list[MediaItem], start: int) -> None:
        need.computed.update(items)
        self._let_go(need, items, start)

    def _let_go(self, need: Need, items: Iterable[MediaItem], start: int) -> None:
        """Stop using items that have no tokens left to compute. Items that were computed before are kept for a later preemption."""
        for item in items:
            if item not in need.computed or not self.cache.keep(item, need.request.request_id):
                self.cache.release(item)
            self._changed = True
        need.start = start
        need.missing = deque(item for item in need.missing if item.end > start)

    def acquire(self) -> list[str]:
        """Give room to requests that need it, in order of rank. Returns the ids of requests that found embeddings in the cache."""
        served = []
        while self._changed:  # repeat after room was taken from a request
            self._changed = False
            for need in sorted((need for need in self._needs.values() if need.missing), key=self._rank):
                while need.missing and self._hold(need.missing[0], need):
                    if self.cache.embeddings(need.missing.popleft()) is not None:
                        served.append(need.request.request_id)
                if need.missing:
                    break  # a lower-ranked request must not take the room that this one waits for
        return served

    def _rank(self, need: Need) -> tuple[bool, bool, tuple[int, int]]:
        """Requests with a smaller value are served first."""
        request = need.request
        return not request.is_running, not self.goes_first(request), request.queue_key

    def _hold(self, item: MediaItem, need: Need) -> bool:
        if self.cache.has_room(item):
            return self.cache.hold(item, need.request.request_id)
        holders = [self._needs[request_id] for request_id in self.cache.user_ids()]
        for victim in sorted(holders, key=self._rank, reverse=True):
            if self._rank(victim) <= self._rank(need):
                break
            self.want(victim.request, victim.start)
            if self.cache.has_room(item):
                return self.cache.hold(item, need.request.request_id)
        return False

    def fail(self, number: int, error: TriptychError) -> list[tuple[str, TriptychError]]:
        """Record a failed fetch; returns the ids of the requests that fail with it, and their errors."""
        self._changed = True
        return self.cache.fail(number, error)

    def check_integrity(self, live_ids: set[str]) -> None:
        """Raise AssertionError unless needs and cache agree. For tests."""
        if not set(self._needs) <= live_ids:
            raise AssertionError("a request that ended needs embeddings")
        if not self.cache.owner_ids() <= set(self._needs):
            raise AssertionError("a request that needs none holds embeddings")
        self.cache.check_integrity(live_ids)
