"""The circuit breaker: what opens and closes it, and which results count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from triptych_common.cluster.breaker import MAX_FAILURES, MAX_OPEN_S, MIN_OPEN_S, Breaker


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def opened(clock: Clock) -> Breaker:
    """A breaker that has just opened."""
    breaker = Breaker(clock)
    results = [breaker.failed(breaker.begin()) for _ in range(MAX_FAILURES)]
    assert results == [False] * (MAX_FAILURES - 1) + [True]
    return breaker


def test_only_failures_in_a_row_open_it() -> None:
    breaker = Breaker(Clock())
    for _ in range(3 * MAX_FAILURES):
        breaker.failed(breaker.begin())
        breaker.succeeded(breaker.begin())
    assert breaker.is_closed
    assert breaker.takes_calls


def test_an_open_one_takes_one_trial_call_after_its_time() -> None:
    clock = Clock()
    breaker = opened(clock)
    assert not breaker.takes_calls
    clock.now_s += MIN_OPEN_S
    assert breaker.takes_calls
    trial = breaker.begin()
    assert not breaker.takes_calls, "one at a time"
    assert breaker.succeeded(trial)
    assert breaker.is_closed


def test_the_time_doubles_with_each_failed_trial_and_begins_anew_after_a_success() -> None:
    clock = Clock()
    breaker = opened(clock)
    waits = []
    for _ in range(6):
        since_s = clock.now_s
        while not breaker.takes_calls:
            clock.now_s += 0.5
        waits.append(clock.now_s - since_s)
        assert breaker.failed(breaker.begin())
    assert waits == [5, 10, 20, 40, 60, 60]
    clock.now_s += MAX_OPEN_S
    assert breaker.succeeded(breaker.begin())
    for _ in range(MAX_FAILURES):
        breaker.failed(breaker.begin())
    clock.now_s += MIN_OPEN_S
    assert breaker.takes_calls


def test_a_cancelled_trial_lets_the_next_one_begin() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now_s += MIN_OPEN_S
    trial = breaker.begin()
    breaker.ended(trial)
    assert breaker.takes_calls
    assert not breaker.is_closed


def test_late_results_of_an_earlier_state_do_not_count() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    late = breaker.begin()
    for _ in range(MAX_FAILURES):
        breaker.failed(breaker.begin())
    assert not breaker.succeeded(late)
    assert not breaker.is_closed
    clock.now_s += MIN_OPEN_S
    assert breaker.succeeded(breaker.begin())
    assert not breaker.failed(late)
    assert breaker.is_closed


@given(st.lists(st.tuples(st.sampled_from(["begin", "succeeded", "failed", "ended"]), st.integers(0, 5), st.floats(0, 30))))
def test_it_always_takes_calls_again(events: list[tuple[str, int, float]]) -> None:
    clock = Clock()
    breaker = Breaker(clock)
    generations = [0]
    for name, which, pause_s in events:
        clock.now_s += pause_s
        if name == "begin":
            if breaker.takes_calls:
                generations.append(breaker.begin())
        else:
            getattr(breaker, name)(generations[which % len(generations)])
        assert breaker.takes_calls or not breaker.is_closed
    for generation in generations:
        breaker.ended(generation)
    clock.now_s += MAX_OPEN_S
    assert breaker.takes_calls
