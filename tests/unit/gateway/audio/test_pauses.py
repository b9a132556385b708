"""Where speech is cut."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from triptych_gateway.apis.audio.pauses import FRAME_S, loudness, sounding, spans

LOUD, QUIET = -20.0, -70.0
RUNS = st.lists(st.tuples(st.integers(1, 400), st.sampled_from([LOUD, QUIET, -45.0])), min_size=1, max_size=20)


def frames(*runs: tuple[int, float]) -> np.ndarray:
    return np.concatenate([np.full(count, level, np.float32) for count, level in runs])


def ends(levels: np.ndarray, shortest: int = 150, longest: int = 500, at_pauses: bool = True) -> list[int]:
    return [span.end for span in spans(levels, shortest, longest, at_pauses)]


@given(RUNS, st.integers(1, 200), st.integers(10, 300), st.booleans())
def test_parts_cover_all_sound_in_order_and_are_no_longer_than_allowed(
    runs: list[tuple[int, float]], shortest: int, more: int, at_pauses: bool
) -> None:
    levels = frames(*runs)
    longest = shortest + more
    parts, has_sound = spans(levels, shortest, longest, at_pauses), sounding(levels)
    covered = np.zeros(len(levels), bool)
    for one, following in zip(parts, [*parts[1:], None], strict=True):
        assert one.start <= one.first < one.last <= one.end
        assert following is None or one.end <= following.start
        assert one.end - one.start <= longest or len(parts) == 1
        assert one.end - one.start >= shortest or one.end == len(levels)
        covered[one.first : one.last] = True
    assert not (has_sound & ~covered).any()


def test_a_cut_is_in_the_middle_of_the_longest_pause() -> None:
    levels = frames((200, LOUD), (20, QUIET), (100, LOUD), (60, QUIET), (100, LOUD), (30, QUIET), (400, LOUD))
    assert ends(levels)[0] == 200 + 20 + 100 + 30
    assert spans(levels, 150, 500, True)[0].last == 320


def test_a_dip_within_a_word_is_no_pause() -> None:
    levels = frames((200, LOUD), (10, QUIET), (200, LOUD))
    assert ends(levels) == [410]


def test_without_a_pause_the_quietest_place_is_taken() -> None:
    levels = frames((450, LOUD), (5, LOUD - 6), (300, LOUD))
    assert abs(ends(levels)[0] - 452) <= 2


def test_what_need_not_be_cut_is_cut_only_at_pauses_that_are_asked_for() -> None:
    levels = frames((200, LOUD), (40, QUIET), (200, LOUD))
    assert ends(levels, at_pauses=False) == [440]
    assert ends(levels) == [220, 440]


def test_silence_has_no_part_unless_there_is_nothing_else() -> None:
    levels = frames((200, LOUD), (3000, QUIET), (200, LOUD))
    assert [(span.first, span.last) for span in spans(levels, 150, 500, True)] == [(0, 200), (3200, 3400)]
    assert len(spans(np.full(400, -120, np.float32), 150, 500, True)) == 1
    assert len(spans(np.zeros(0, np.float32), 150, 500, True)) == 1


def test_pauses_are_relative_to_how_loud_the_speech_is() -> None:
    levels = frames((200, LOUD), (40, QUIET), (200, LOUD))
    for change in (-30.0, 15.0):
        assert ends(levels + change) == ends(levels)
    # Traffic behind the speaker.
    assert ends(np.maximum(levels, -40)) == ends(levels)


def test_loudness() -> None:
    second = np.arange(16_000)
    square = np.where(second % 2, 32767, -32768).astype(np.int16)
    half = (square // 2).astype(np.int16)
    levels = loudness(np.concatenate([square, half, np.zeros(8_000, np.int16), square[:100]]), 16_000)
    assert levels.shape == (round(2.5 / FRAME_S),)
    np.testing.assert_allclose(levels[[0, 60, 124]], [0, -6.02, -120], atol=0.05)
