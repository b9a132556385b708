"""Stop strings: nothing of them leaks, and how the text was cut makes no difference."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from support.drivers.output import merged, pieces_of, run_stage
from triptych_frontend.conversation.events import Stopped, Text
from triptych_frontend.conversation.text_matcher import TextMatcher
from triptych_frontend.output.chain import StopStrings

# Few characters, so that stop strings occur, overlap and contain each other.
TEXTS = st.text("ab<|", max_size=24)
STOPS = st.lists(st.text("ab<|", min_size=1, max_size=5), min_size=1, max_size=4)
CUTS = st.lists(st.integers(0, 24))


def reference(text: str, stops: list[str], include_stop: bool) -> list[object]:
    """The text up to the stop string that ends first (the longest of those that end together), by looking at every prefix."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            before = text[: end if include_stop else end - len(stop)]
            return [before, Stopped(stop)] if before else [Stopped(stop)]
    return [text] if text else []


@given(text=TEXTS, stops=STOPS, cuts=CUTS, include_stop=st.booleans())
@example(text="aab", stops=["aab", "ab"], cuts=[1, 2], include_stop=False)
def test_the_events_do_not_depend_on_how_the_text_is_cut(text: str, stops: list[str], cuts: list[int], include_stop: bool) -> None:
    stage = StopStrings(TextMatcher(stops), include_stop)
    assert merged(run_stage(stage, pieces_of(text, cuts))) == reference(text, stops, include_stop)


@given(text=TEXTS, stops=STOPS)
def test_no_more_is_held_back_than_may_begin_a_stop_string(text: str, stops: list[str]) -> None:
    stage = StopStrings(TextMatcher(stops))
    events = [event for char in text for event in stage.feed(Text(char, 1))]
    if any(isinstance(event, Stopped) for event in events):
        return
    held = text.removeprefix("".join(event.text for event in events if isinstance(event, Text)))
    assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


@given(text=TEXTS, stops=STOPS, cuts=CUTS, min_tokens=st.integers(0, 4))
def test_text_of_the_first_tokens_is_passed_on_as_it_is(text: str, stops: list[str], cuts: list[int], min_tokens: int) -> None:
    pieces = pieces_of(text, cuts)
    free, rest = "".join(pieces[:min_tokens]), "".join(pieces[min_tokens:])
    events = run_stage(StopStrings(TextMatcher(stops), min_tokens=min_tokens), pieces)
    joined = "".join(event.text for event in events if isinstance(event, Text))
    expected = reference(rest, stops, False)
    assert joined == free + "".join(part for part in expected if isinstance(part, str))
    assert [event for event in events if isinstance(event, Stopped)] == [part for part in expected if isinstance(part, Stopped)]


def test_nothing_comes_after_a_stop_string() -> None:
    stage = StopStrings(TextMatcher(["END"]))
    assert stage.feed(Text("the END of it", 1)) == [Text("the ", 1), Stopped("END")]
    assert stage.feed(Text("more", 2)) == []
    assert stage.finish() == []
