"""Stop strings: nothing of them leaks, and how the text was cut makes no difference."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from triptych_frontend.output.stop_strings import StopAutomaton, StopStringMatcher

# Few characters, so that stop strings occur, overlap and contain each other.
TEXTS = st.text("ab<|", max_size=24)
STOPS = st.lists(st.text("ab<|", min_size=1, max_size=5), min_size=1, max_size=4)


def reference(text: str, stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    """The text up to the stop string that ends first (the longest of those that end together), by looking at every prefix."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include_stop else end - len(stop)], stop
    return text, None


@given(text=TEXTS, stops=STOPS, cuts=st.lists(st.integers(0, 24)), include_stop=st.booleans())
@example(text="aab", stops=["aab", "ab"], cuts=[1, 2], include_stop=False)
def test_streamed_text_ends_where_the_whole_text_would(text: str, stops: list[str], cuts: list[int], include_stop: bool) -> None:
    matcher = StopStringMatcher(StopAutomaton(stops), include_stop)
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    streamed = ""
    for start, end in pairwise(bounds):
        streamed += matcher.feed(text[start:end])
        # What was sent can never be taken back, so at no moment may it go beyond the final text.
        assert reference(text, stops, include_stop)[0].startswith(streamed)
    streamed += matcher.flush()
    assert (streamed, matcher.matched) == reference(text, stops, include_stop)


@given(text=TEXTS, stops=STOPS)
def test_no_more_is_held_back_than_may_begin_a_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopStringMatcher(StopAutomaton(stops))
    sent = "".join(matcher.feed(char) for char in text)
    if matcher.matched is None:
        held = text[len(sent) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_text_after_a_match_is_dropped() -> None:
    matcher = StopStringMatcher(StopAutomaton(["END"]))
    assert matcher.feed("the END of it") == "the "
    assert matcher.feed("more") == ""
    assert matcher.flush() == ""
    assert matcher.matched == "END"


@pytest.mark.parametrize("length", [1, 1024])
def test_a_stop_string_that_repeats_itself_is_found_in_linear_time(length: int) -> None:
    matcher = StopStringMatcher(StopAutomaton(["a" * length + "b"]))
    assert matcher.feed("a" * 100_000) == "a" * (100_000 - length)
    assert matcher.feed("b") == ""
    assert matcher.matched is not None


def test_matchers_that_share_an_automaton_do_not_disturb_each_other() -> None:
    automaton = StopAutomaton(["END"])
    first, second = StopStringMatcher(automaton), StopStringMatcher(automaton)
    assert (first.feed("a EN"), second.feed("b E")) == ("a ", "b ")
    assert (first.feed("D"), second.feed("X")) == ("", "EX")
    assert (first.matched, second.matched) == ("END", None)
