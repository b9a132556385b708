"""Prefix caching: what is found, what is never shared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders.engine import a_request
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager, hash_block


def computed(kv_cache: KVCacheManager, prompt: list[int], **kwargs: object):
    """Admit a request and compute its whole prompt."""
    request = a_request(prompt=prompt)
    for name, value in kwargs.items():
        setattr(request, name, value)
    kv_cache.allocate(request, kv_cache.find_cached_prefix(request))
    kv_cache.commit(request, request.num_tokens - request.num_computed_tokens)
    return request


def test_a_second_request_shares_the_full_blocks_of_a_common_prefix():
    kv_cache = KVCacheManager(16, 4)
    first = computed(kv_cache, list(range(10)))
    second = a_request(prompt=[*range(8), 99, 98])
    found = kv_cache.find_cached_prefix(second)
    assert found == first.block_ids[:2]
    kv_cache.allocate(second, found)
    assert second.num_computed_tokens == second.num_cached_tokens == 8


def test_the_last_token_is_always_computed():
    kv_cache = KVCacheManager(16, 4)
    computed(kv_cache, list(range(8)))
    assert len(kv_cache.find_cached_prefix(a_request(prompt=list(range(8))))) == 1


def test_another_salt_shares_nothing():
    kv_cache = KVCacheManager(16, 4)
    computed(kv_cache, list(range(9)), cache_salt="tenant-a")
    other = a_request(prompt=list(range(9)))
    other.cache_salt = "tenant-b"
    assert kv_cache.find_cached_prefix(other) == []


def test_prompt_logprobs_need_the_whole_prompt_computed():
    kv_cache = KVCacheManager(16, 4)
    computed(kv_cache, list(range(9)))
    assert kv_cache.find_cached_prefix(a_request(prompt=list(range(9)), prompt_logprobs=0)) == []


def test_caching_can_be_turned_off():
    kv_cache = KVCacheManager(16, 4, enable_prefix_caching=False)
    computed(kv_cache, list(range(9)))
    assert kv_cache.find_cached_prefix(a_request(prompt=list(range(9)))) == []


def test_a_request_that_does_not_fit_is_not_allocated_for():
    kv_cache = KVCacheManager(3, 4)
    computed(kv_cache, list(range(8)))
    large = a_request(prompt=list(range(50, 58)))
    assert not kv_cache.can_allocate(large, [])
    with pytest.raises(AssertionError, match="not enough blocks for request r"):
        kv_cache.allocate(large, [])
    assert large.block_ids == []
    assert kv_cache.pool.num_free_blocks == 1


def test_blocks_of_a_cached_prefix_that_are_free_count_as_needed():
    """Holding a free cached block takes it off the free list, so it cannot be counted as room as well."""
    kv_cache = KVCacheManager(3, 4)
    first = computed(kv_cache, list(range(9)))
    kv_cache.release(first)
    again = a_request(prompt=[*range(8), *range(20, 28)])  # needs 4 blocks of 3, two of them cached
    assert not kv_cache.can_allocate(again, kv_cache.find_cached_prefix(again))


def test_grow_adds_a_block_only_when_the_last_is_full():
    kv_cache = KVCacheManager(3, 4)
    request = computed(kv_cache, [1, 2, 3])
    request.token_ids.append(4)
    assert kv_cache.grow(request) == []
    request.token_ids.append(5)
    assert len(kv_cache.grow(request)) == 1


@given(st.lists(st.integers(0, 2**31 - 1), min_size=4, max_size=4), st.lists(st.integers(0, 2**31 - 1), min_size=4, max_size=4))
def test_hashes_tell_contents_and_parents_apart(a: list[int], b: list[int]):
    assert (hash_block(b"", a) == hash_block(b"", b)) == (a == b)
    assert hash_block(hash_block(b"", a), b) != hash_block(b"", b)
