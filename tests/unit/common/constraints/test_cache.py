"""Equal constraints are compiled once, and kept while somebody holds them."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.builders.tokenizer import IM_END_ID, VOCAB_SIZE, byte_level_tokenizer
from triptych.errors import InvalidRequestError, UnimplementedError
from triptych_common.constraints import cache as cache_module
from triptych_common.constraints.cache import ConstraintCache, warm_up
from triptych_common.constraints.spec import ConstraintSpec
from triptych_common.constraints.tokenizer import constraint_tokenizer


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


def test_the_tokenizer_is_loaded_before_the_first_constraint() -> None:
    loads: list[str] = []
    with ThreadPoolExecutor(1, "pool") as pool:
        cache = a_cache(pool, loads)
        warm_up(cache.compile).result()
        assert len(loads) == 1
        cache.compile(regex("a")).result()
    assert len(loads) == 1
    assert loads[0].startswith("pool")


def test_a_tokenizer_that_cannot_be_used_is_logged_and_told_to_each_request(caplog: pytest.LogCaptureFixture) -> None:
    def load():
        raise ValueError("no such model type")

    with ThreadPoolExecutor(1) as pool:
        cache = ConstraintCache(load, pool, "options.constraint")
        warm_up(cache.compile).result()
        with pytest.raises(UnimplementedError, match="no such model type") as caught:
            cache.compile(regex("a")).result()
    assert caught.value.field == "options.constraint"
    assert "constraints cannot be used" in caplog.text
