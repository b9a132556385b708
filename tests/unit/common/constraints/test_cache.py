"""Equal constraints are compiled once, and kept while somebody holds them."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.builders.tokenizer import IM_END_ID, VOCAB_SIZE, byte_level_tokenizer
from triptych_common.constraints import cache as cache_module
from triptych_common.constraints.cache import ConstraintCache
from triptych_common.constraints.spec import ConstraintSpec
from triptych_common.constraints.tokenizer import constraint_tokenizer
from triptych_common.errors import InvalidRequestError


def a_cache(pool: ThreadPoolExecutor, loads: list[str] | None = None) -> ConstraintCache:
    def load():
        if loads is not None:
            loads.append(threading.current_thread().name)
        return constraint_tokenizer(byte_level_tokenizer(), VOCAB_SIZE, [IM_END_ID])

    return ConstraintCache(load, pool, "constraint")


def regex(text: str) -> ConstraintSpec:
    return ConstraintSpec("regex", text)


def test_equal_constraints_at_once_compile_once_and_in_the_pool() -> None:
    loads: list[str] = []
    with ThreadPoolExecutor(2, "pool") as pool:
        cache = a_cache(pool, loads)
        futures = [cache.compile(regex("a+")) for _ in range(5)]
        assert len(set(map(id, futures))) == 1
        assert cache.compile(regex("b+")) is not futures[0]
        first, second = cache.copy(regex("a+")) if futures[0].result() else None, cache.copy(regex("a+"))
    assert first is not None
    first.consume_token(byte_level_tokenizer().encode("a").ids[0])
    assert (first.is_accepting(), second.is_accepting()) == (True, False), "each copy has a state of its own"
    assert [name.startswith("pool") for name in loads] == [True], "the tokenizer is loaded once, in the pool"


def test_a_failure_reaches_all_who_wait_and_is_not_kept() -> None:
    with ThreadPoolExecutor(1) as pool:
        cache = a_cache(pool)
        future = cache.compile(regex("(a"))
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match="unclosed group"):
                future.result()
        assert cache.compile(regex("(a")) is not future
        with pytest.raises(InvalidRequestError):
            cache.copy(regex("(a"))


def test_the_oldest_are_forgotten_unless_they_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_MAX_UNUSED", 2)
    with ThreadPoolExecutor(1) as pool:
        cache = a_cache(pool)
        held = cache.compile(regex("a"))
        for text in "bcd":
            cache.compile(regex(text)).result()
        assert cache.compile(regex("a")) is held
        del held
        newest = id(cache.compile(regex("d")))
        cache.compile(regex("e")).result()
        gc.collect()
        assert id(cache.compile(regex("d"))) == newest
        assert regex("b") not in cache._held
        assert not cache.copy(regex("b")).is_error(), "what was forgotten is compiled again"
