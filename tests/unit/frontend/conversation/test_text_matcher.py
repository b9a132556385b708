"""The matcher reports every occurrence with its position, however the text was cut."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.drivers.output import pieces_of
from triptych_frontend.conversation.text_matcher import Match, TextMatcher

# Few characters, so that patterns occur, overlap and contain each other.
TEXTS = st.text("ab<|", max_size=24)
PATTERNS = st.lists(st.text("ab<|", min_size=1, max_size=5), min_size=1, max_size=5)
CUTS = st.lists(st.integers(0, 24))


def occurrences(text: str, patterns: list[str]) -> list[Match]:
    """Every occurrence of every pattern, found by looking at every place: by end, longest first."""
    longest_first = sorted(set(patterns), key=len, reverse=True)
    return [
        Match(pattern, end - len(pattern), end)
        for end in range(1, len(text) + 1)
        for pattern in longest_first
        if text[:end].endswith(pattern)
    ]


@given(text=TEXTS, patterns=PATTERNS, cuts=CUTS)
@example(text="aab", patterns=["aab", "ab", "b"], cuts=[1, 2])
def test_every_occurrence_is_reported_however_the_text_is_cut(text: str, patterns: list[str], cuts: list[int]) -> None:
    scan = TextMatcher(patterns).scan()
    assert [match for piece in pieces_of(text, cuts) for match in scan.feed(piece)] == occurrences(text, patterns)
    assert scan.position == len(text)


@given(text=TEXTS, patterns=PATTERNS)
def test_what_may_begin_a_pattern_is_known(text: str, patterns: list[str]) -> None:
    scan = TextMatcher(patterns).scan()
    scan.feed(text)
    beginnings = [pattern[:length] for pattern in patterns for length in range(len(pattern) + 1)]
    assert scan.num_held == max(len(beginning) for beginning in beginnings if text.endswith(beginning))


@pytest.mark.parametrize("length", [1, 1024])
def test_a_pattern_that_repeats_itself_takes_a_step_per_character(length: int) -> None:
    scan = TextMatcher(["a" * length + "b"]).scan()
    assert scan.feed("a" * 100_000) == []
    assert scan.num_held == length
    assert scan.feed("b") == [Match("a" * length + "b", 100_000 - length, 100_001)]


def test_scans_that_share_a_matcher_do_not_disturb_each_other() -> None:
    matcher = TextMatcher(["END"])
    first, second = matcher.scan(), matcher.scan()
    assert first.feed("a EN") == second.feed("b E") == []
    assert (first.feed("D"), second.feed("X")) == ([Match("END", 2, 5)], [])
