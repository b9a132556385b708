"""What `triptych batch` and the gateway share: lines of bounded length, and retries."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from support.run_dir import run_dir
from triptych_common.batch.lines import read_texts
from triptych_common.batch.retries import Retries

_NAMES = iter(range(10**6))


@given(st.lists(st.binary(max_size=40).map(lambda text: text.replace(b"\n", b" ")), max_size=8), st.integers(1, 20), st.booleans())
def test_long_lines_are_cut_and_the_others_are_whole(lines: list[bytes], limit: int, ends: bool) -> None:
    path: Path = run_dir(f"lines-{next(_NAMES)}") / "in.jsonl"
    path.write_bytes(b"\n".join(lines) + (b"\n" if ends else b""))
    expected = [(number, line) for number, line in enumerate(lines, start=1) if line[: limit + 1].strip()]
    found = list(read_texts(path, limit))
    assert [number for number, _ in found] == [number for number, _ in expected]
    for (_, text), (_, line) in zip(found, expected, strict=True):
        assert len(text) <= limit + 1
        assert text.rstrip(b"\n") == line[: limit + 1].rstrip(b"\n")
    whole = [(number, text.rstrip(b"\n")) for number, text in read_texts(path)]
    assert whole == [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def test_a_full_server_is_asked_as_long_as_it_takes() -> None:
    retries = Retries(max_away=2)
    assert all(retries.again(429) for _ in range(1000))
    assert not retries.again(200)


def test_a_server_that_is_away_or_fails_is_asked_so_often() -> None:
    assert [Retries(3).again(status) for status in (200, 400, 404)] == [False] * 3
    away, failing, lost = Retries(3), Retries(3), Retries(2)
    assert [away.again(503) for _ in range(3)] == [True, True, False]
    assert [failing.again(500) for _ in range(3)] == [True, True, False]
    assert [lost.again(None) for _ in range(2)] == [True, False]
    # A gateway that asks itself has no proxy before it.
    patient = Retries(math.inf, frozenset({503}))
    assert all(patient.again(503) for _ in range(1000))
    assert [patient.again(502) for _ in range(3)] == [True, True, False]


def test_pauses_grow_and_are_at_least_what_the_server_asked_for() -> None:
    retries = Retries(math.inf)
    pauses = []
    for _ in range(50):
        retries.again(503)
        pauses.append(retries.pause_s())
    assert 0.25 <= pauses[0] <= 0.5
    assert all(7.5 <= pause <= 15 for pause in pauses[10:])
    assert retries.pause_s(60) == 60
