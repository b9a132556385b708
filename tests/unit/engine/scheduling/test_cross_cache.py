"""Slots for the keys and values of encoders' states: who shares them, and when they are given to others."""

from __future__ import annotations

import pytest
from support.builders.engine import a_request
from triptych_engine.media.item import MediaItem, Modality, PromptMedia
from triptych_engine.scheduling.cache.cross_cache import CrossCache
from triptych_engine.scheduling.request import Request


def a_transcription(name: str, key: bytes) -> Request:
    request = a_request(name)
    request.media = PromptMedia((MediaItem(0, Modality.AUDIO, key, num_tokens=9),), is_beside=True)
    return request


def _admitted(cache: CrossCache, name: str, key: bytes) -> Request:
    request = a_transcription(name, key)
    assert cache.has_room(request)
    cache.allocate(request)
    return request


def test_a_slot_is_shared_once_it_is_filled() -> None:
    cache = CrossCache(3)
    first, second = _admitted(cache, "first", b"a"), _admitted(cache, "second", b"a")
    assert first.fills_cross_slot
    assert second.fills_cross_slot
    assert first.cross_slot != second.cross_slot
    cache.commit(first)
    third = _admitted(cache, "third", b"a")
    assert third.cross_slot == first.cross_slot
    assert not third.fills_cross_slot
    cache.commit(second)  # the other slot holds the same already
    cache.check_integrity([first, second, third])
    for request in (first, second, third):
        cache.release(request)
    cache.check_integrity([])
    assert cache.num_free == 3


def test_the_slot_of_a_step_that_failed_is_filled_again() -> None:
    cache = CrossCache(1)
    cache.release(_admitted(cache, "failed", b"a"))
    assert _admitted(cache, "again", b"a").fills_cross_slot


def test_the_slot_that_was_not_used_for_the_longest_time_goes_first() -> None:
    cache = CrossCache(2)
    for key in (b"a", b"b", b"a"):
        request = _admitted(cache, key.decode(), key)
        cache.commit(request)
        cache.release(request)
    _admitted(cache, "new", b"c")
    assert not _admitted(cache, "a", b"a").fills_cross_slot


def test_has_room_for_those_who_share() -> None:
    cache = CrossCache(1)
    cache.commit(request := _admitted(cache, "r", b"a"))
    same, other = a_transcription("same", b"a"), a_transcription("other", b"b")
    assert cache.has_room(same)
    assert not cache.has_room(other)
    assert not cache.has_room(same, other)
    cache.reset()
    assert not cache.has_room(same)
    cache.release(request)
    cache.check_integrity([])
    assert cache.has_room(other)


def test_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="at least one"):
        CrossCache(0)
