"""Buckets never give more than their rate, give back exactly, and are the same in memory and on a server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.shared_store import running_store, server_program
from triptych_gateway.access.grant import duration
from triptych_gateway.access.rates import Draw, MemoryRates, SharedRates, Taken

#: Seconds to wait, tokens that a request reserves, and tokens that it uses in the end.
STEPS = st.lists(st.tuples(st.floats(0, 90), st.integers(1, 150), st.integers(0, 300)), max_size=60)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def tokens(cost: float, per_minute: int = 100) -> Draw:
    return Draw("tokens", per_minute, cost)


@given(steps=STEPS, limit=st.integers(1, 200))
def test_no_window_gets_more_than_a_burst_and_the_rate(steps: list[tuple[float, int, int]], limit: int) -> None:
    clock = Clock()
    rates = MemoryRates(clock)
    taken: list[tuple[float, int]] = []
    for wait_s, cost, _ in steps:
        clock.now_s += wait_s
        outcome = asyncio.run(rates.take("key", [tokens(cost, limit)]))
        if outcome.is_allowed:
            taken.append((clock.now_s, cost))
    for first, (start_s, _) in enumerate(taken):
        total = 0
        for at_s, cost in taken[first:]:
            total += cost
            assert total <= limit * (1 + (at_s - start_s) / 60) + 1e-6


@given(steps=STEPS, limit=st.integers(1, 200))
def test_what_is_settled_is_what_was_used(steps: list[tuple[float, int, int]], limit: int) -> None:
    """The level is that of a bucket from which exactly what was used was taken, if it is never full in between."""
    clock = Clock()
    rates = MemoryRates(clock)
    used = 0
    for _, cost, real in steps:
        if asyncio.run(rates.take("key", [tokens(cost, limit)])).is_allowed:
            rates.settle("key", tokens(real - cost, limit))
            used += real
    left = asyncio.run(rates.take("key", [tokens(0, limit)])).levels[0].left
    assert left == pytest.approx(limit - used)
    # Time fills it, and a debt is paid by nothing else.
    clock.now_s += used * 60 / limit
    assert asyncio.run(rates.take("key", [tokens(limit * (1 - 1e-9), limit)])).is_allowed


@given(wait_s=st.floats(0, 120), cost=st.integers(1, 100), limit=st.integers(1, 100))
def test_the_wait_that_is_told_is_long_enough_and_not_longer(wait_s: float, cost: int, limit: int) -> None:
    clock = Clock()
    rates = MemoryRates(clock)
    cost = min(cost, limit)

    def take() -> Taken:
        return asyncio.run(rates.take("key", [tokens(cost, limit)]))

    while take().is_allowed:
        pass
    clock.now_s += wait_s
    refused = take()
    if not refused.is_allowed:
        assert refused.levels[0].is_short
        clock.now_s += refused.levels[0].wait_s * 0.99
        assert not take().is_allowed or refused.levels[0].wait_s < 1e-6
        clock.now_s += refused.levels[0].wait_s * 0.01 + 1e-6
        assert take().is_allowed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_store(server_program(), tmp_path_factory.mktemp("rates")) as url:
        yield url


def no_failure() -> None:
    raise AssertionError("the server did not answer")


@pytest.fixture(params=["memory", "shared"])
def rates(request: pytest.FixtureRequest, server: str) -> MemoryRates:
    return MemoryRates() if request.param == "memory" else SharedRates(server, no_failure)


#: Buckets that hardly fill while a test runs.
SLOW = 60


async def test_all_draws_or_none(rates: MemoryRates) -> None:
    both = [Draw("requests", SLOW, 1), Draw("tokens", SLOW, 40)]
    first = await rates.take("all or none", both)
    second = await rates.take("all or none", both)
    requests, tokens_left = second.levels
    assert first.is_allowed
    assert [level.left for level in first.levels] == pytest.approx([59, 20], abs=2)
    assert not second.is_allowed
    assert (requests.is_short, tokens_left.is_short) == (False, True)
    assert [requests.left, tokens_left.left] == pytest.approx([59, 20], abs=5), "nothing was taken"
    assert tokens_left.wait_s == pytest.approx(20, abs=5)
    assert requests.reset_s == pytest.approx(1, abs=5)
    await rates.close()


async def test_many_requests_at_once_get_no_more_than_the_rate(rates: MemoryRates) -> None:
    # More than the connections of a client of Redis.
    taken = await asyncio.gather(*(rates.take("many at once", [Draw("requests", SLOW, 1)]) for _ in range(400)))
    assert sum(one.is_allowed for one in taken) == pytest.approx(SLOW, abs=5)
    await rates.close()


async def test_keys_have_buckets_of_their_own(rates: MemoryRates) -> None:
    assert (await rates.take("a key", [Draw("tokens", SLOW, 60)])).is_allowed
    assert not (await rates.take("a key", [Draw("tokens", SLOW, 30)])).is_allowed
    assert (await rates.take("another key", [Draw("tokens", SLOW, 60)])).is_allowed
    assert (await rates.take("a key", [Draw("requests", SLOW, 60)])).is_allowed
    await rates.close()


async def test_a_settlement_may_take_more_than_there_is_or_give_back(rates: MemoryRates) -> None:
    async def settled(cost: float) -> float:
        rates.settle("settled", Draw("tokens", SLOW, cost))
        if isinstance(rates, SharedRates):
            await asyncio.gather(*rates._settling)
        return (await rates.take("settled", [Draw("tokens", SLOW, 0)])).levels[0].left

    assert await settled(100) == pytest.approx(-40, abs=5)
    assert not (await rates.take("settled", [Draw("tokens", SLOW, 1)])).is_allowed
    assert (await rates.take("settled", [Draw("tokens", SLOW, 0)])).is_allowed, "nothing can always be taken"
    assert await settled(-70) == pytest.approx(30, abs=10)
    assert await settled(-1000) == 60, "no more than full"
    await rates.close()


async def test_a_limit_may_change(rates: MemoryRates) -> None:
    await rates.take("changed", [Draw("tokens", 1000, 0)])
    lower = await rates.take("changed", [Draw("tokens", 10, 0)])
    assert lower.levels[0].left == 10
    await rates.close()


async def test_gateways_share_a_rate(server: str) -> None:
    one, other = SharedRates(server, no_failure), SharedRates(server, no_failure)
    outcomes = await asyncio.gather(*(rates.take("shared", [Draw("requests", SLOW, 10)]) for rates in (one, other) * 10))
    assert 6 <= sum(outcome.is_allowed for outcome in outcomes) <= 8
    # What is idle is forgotten.
    assert 0 < await one._redis.ttl("triptych:rate:shared") <= 121
    await one.close()
    await other.close()


async def test_a_server_that_is_away_stops_nobody_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triptych_gateway.access.rates._PAUSE_S", 0.0)
    caplog.set_level(logging.INFO)
    failures = 0

    def count() -> None:
        nonlocal failures
        failures += 1

    with running_store(server_program(), tmp_path) as url:
        rates = SharedRates(url, count)
        assert (await rates.take("key", [Draw("tokens", SLOW, 50)])).is_allowed
    # Now this gateway counts by itself.
    outcomes = [(await rates.take("key", [Draw("tokens", SLOW, 50)])).is_allowed for _ in range(3)]
    rates.settle("key", Draw("tokens", SLOW, -50))
    await asyncio.gather(*rates._settling)
    again = await rates.take("key", [Draw("tokens", SLOW, 50)])
    await rates.close()
    assert outcomes == [True, False, False]
    assert again.is_allowed
    assert failures == 5
    assert len(caplog.records) == 1
    assert "until it is back, this gateway counts alone" in caplog.text


async def test_a_server_that_is_back_is_used_again(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[None] = []
    rates = SharedRates(server, lambda: failures.append(None))
    with monkeypatch.context() as patch:
        patch.setattr("triptych_gateway.access.rates._TIMEOUT_S", 0.0)
        assert (await rates.take("back", [Draw("tokens", SLOW, 60)])).is_allowed
        # Within the pause, it is not asked at all.
        assert not (await rates.take("back", [Draw("tokens", SLOW, 60)])).is_allowed
    assert len(failures) == 1
    rates._asked_again_s = 0.0
    assert (await rates.take("back", [Draw("tokens", SLOW, 60)])).is_allowed
    assert len(failures) == 1
    await rates.close()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0004, "1ms"), (0.02, "20ms"), (1, "1s"), (8.64, "8.64s"), (60, "1m0s"), (72.5, "1m12.5s"), (3600, "1h0m0s")],
)
def test_durations_have_the_form_of_openais_headers(seconds: float, text: str) -> None:
    assert duration(seconds) == text
