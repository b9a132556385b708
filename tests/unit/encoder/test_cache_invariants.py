"""The embedding cache against a model of it: whatever happens, its books balance and leased items stay."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from triptych_encoder.cache.embedding_cache import EmbeddingCache

CAPACITY = 100
KEYS = st.integers(0, 9).map(lambda number: bytes([number]))


@dataclass(frozen=True)
class Item:
    num_bytes: int


class CacheMachine(RuleBasedStateMachine):
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[bytes] = []
        self.cache = EmbeddingCache[Item](CAPACITY, self.evicted.extend)
        self.now = 0.0
        self.alive: dict[str, tuple[bytes, float]] = {}  # lease id -> key, when it ends
        self.kept: list[bytes] = []  # every key put, in order

    def leased_keys(self) -> set[bytes]:
        return {key for key, _ in self.alive.values()}

    @rule(key=KEYS, size=st.integers(0, 120))
    def put(self, key: bytes, size: int) -> None:
        before = self.cache.peek(key)
        leased_bytes = self.cache.leased_bytes
        fits = self.cache.put(key, Item(size))
        if before is not None:
            assert fits
            assert self.cache.peek(key) is before
        else:
            assert fits == (leased_bytes + size <= CAPACITY)
            assert (key in self.cache) == fits

    @rule(target=leases, key=KEYS, duration=st.floats(0.5, 50))
    def lease(self, key: bytes, duration: float) -> str:
        if key not in self.cache:
            return "none"
        lease_id = self.cache.lease(key, self.now + duration)
        assert lease_id not in self.alive
        self.alive[lease_id] = (key, self.now + duration)
        return lease_id

    @rule(lease_id=consumes(leases))
    def release(self, lease_id: str) -> None:
        assert self.cache.release(lease_id) == (lease_id in self.alive)
        self.alive.pop(lease_id, None)
        assert not self.cache.release(lease_id)

    @rule(seconds=st.floats(0, 30))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        ended = {lease_id for lease_id, (_, end) in self.alive.items() if end <= self.now}
        assert self.cache.expire(self.now) == len(ended)
        for lease_id in ended:
            del self.alive[lease_id]

    @rule(key=KEYS)
    def use(self, key: bytes) -> None:
        assert self.cache.use(key) is self.cache.peek(key)

    @rule(keys=st.lists(KEYS, max_size=3))
    def evict(self, keys: list[bytes]) -> None:
        expected = {key for key in keys if key in self.cache} - self.leased_keys()
        assert self.cache.evict(keys) == len(expected)
        assert not any(key in self.cache for key in expected)

    @rule()
    def evict_everything(self) -> None:
        self.cache.evict()
        assert self.cache.leased_bytes == self.cache.used_bytes

    @invariant()
    def books_balance(self) -> None:
        self.cache.check_integrity()
        assert self.cache.num_leases == len(self.alive)
        assert len(self.evicted) == self.cache.num_evictions

    @invariant()
    def leased_items_stay(self) -> None:
        assert all(key in self.cache for key in self.leased_keys())


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestCacheInvariants = CacheMachine.TestCase


def test_the_least_recently_used_goes_first() -> None:
    cache = EmbeddingCache[Item](30)
    for key in (b"a", b"b", b"c"):
        assert cache.put(key, Item(10))
    cache.use(b"a")
    assert cache.put(b"d", Item(10))
    assert b"a" in cache
    assert b"b" not in cache


def test_what_does_not_fit_changes_nothing() -> None:
    cache = EmbeddingCache[Item](30)
    cache.put(b"a", Item(20))
    cache.put(b"b", Item(10))
    cache.lease(b"a", 10.0)
    assert not cache.put(b"c", Item(15))
    assert b"b" in cache


def test_queries_leave_the_order_alone() -> None:
    cache = EmbeddingCache[Item](20)
    cache.put(b"a", Item(10))
    cache.put(b"b", Item(10))
    assert b"a" in cache
    assert cache.peek(b"a") is not None
    cache.put(b"c", Item(10))
    assert b"a" not in cache
