"""How long a refusal waits, by how many its tenant got."""

from __future__ import annotations

from triptych_gateway.access.refusals import MAX_DELAY_S, RefusalPace


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_the_first_hundred_are_answered_at_once_and_more_at_twenty_a_second() -> None:
    pace = RefusalPace(Clock())
    delays = [pace.delay_s("flood") for _ in range(140)]
    assert delays[:100] == [0.0] * 100
    assert [round(delay_s, 6) for delay_s in delays[100:]] == [round(number / 20, 6) for number in range(1, 41)]


def test_no_refusal_waits_for_long_however_many_there_are() -> None:
    pace = RefusalPace(Clock())
    assert max(pace.delay_s("flood") for _ in range(10_000)) <= MAX_DELAY_S + 1e-6


def test_other_tenants_do_not_wait() -> None:
    pace = RefusalPace(Clock())
    for _ in range(1000):
        pace.delay_s("flood")
    assert pace.delay_s("quiet") == 0.0


def test_who_waits_as_told_never_waits_longer() -> None:
    clock = Clock()
    pace = RefusalPace(clock)
    for _ in range(1000):
        pace.delay_s("flood")
    clock.now_s += 2 * MAX_DELAY_S
    for _ in range(1000):
        clock.now_s += 0.1
        assert pace.delay_s("flood") == 0.0
