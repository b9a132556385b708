"""The memory of bodies: nobody's half-read bodies wait for each other, and no tenant takes what is another's."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triptych.errors import QueueFullError
from triptych_common.host.fair_share import FairShare
from triptych_gateway.body_budget import BodyBudget, BodyHold

MIB = 1 << 20


def a_budget(num_bytes: int, wait_s: float = 0.0, max_body_bytes: int = 8 * MIB, max_tenants: int | None = None) -> BodyBudget:
    return BodyBudget(num_bytes, wait_s, max_body_bytes, lambda capacity: FairShare(capacity, max_tenants))


async def _read(budget: BodyBudget, tenant: str, chunks: int, chunk_bytes: int) -> None:
    hold = budget.hold(tenant, chunks * chunk_bytes)
    try:
        for _ in range(chunks):
            await hold.grow(chunk_bytes)
            assert budget.used_bytes <= budget.max_bytes
            await asyncio.sleep(0)
        hold.complete()
        await asyncio.sleep(0)
        # The answer needs a part of it.
        hold.shrink(chunk_bytes)
        await asyncio.sleep(0)
    finally:
        hold.release()


def _is_empty(budget: BodyBudget) -> bool:
    return (budget.used_bytes, budget.num_waiting, budget.first, budget.line.used) == (0, 0, None, 0)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 8)), min_size=1, max_size=30),
    st.sampled_from([1, None]),
    st.sampled_from([4, 8, 12, 24]),
)
def test_all_bodies_of_a_burst_are_read(bodies: list[tuple[str, int]], max_tenants: int | None, num_mib: int) -> None:
    async def burst() -> None:
        # Bodies of up to 8 MiB: most of them find the budget full when they have read a part.
        budget = a_budget(num_mib * MIB, 20.0, max_tenants=max_tenants)
        names = [("a" if max_tenants else tenant, size) for tenant, size in bodies]
        await asyncio.gather(*(_read(budget, tenant, size, MIB) for tenant, size in names))
        assert _is_empty(budget)

    asyncio.run(burst())


async def test_bodies_of_many_tenants_that_grow_together_are_read() -> None:
    """Together they need more than there is, and each one more than a share."""
    budget = a_budget(512 * MIB, 5.0, 80 * MIB)
    await asyncio.gather(*(_read(budget, f"tenant {number}", 80, MIB) for number in range(12)))
    assert _is_empty(budget)


async def test_a_single_tenant_has_all_of_it() -> None:
    budget = a_budget(12 * MIB, max_tenants=1)
    await _read(budget, "", 8, MIB)
    budget = a_budget(4 * MIB, max_tenants=1)
    await _read(budget, "", 8, MIB)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), min_size=2, max_size=12))
def test_bodies_that_break_off_leave_nothing(bodies: list[tuple[str, int]]) -> None:
    """Each is cancelled after so many turns of the event loop, wherever it is then."""

    async def burst() -> None:
        budget = a_budget(16 * MIB, 20.0)
        tasks = [asyncio.create_task(_read(budget, tenant, 8, MIB)) for tenant, _ in bodies]
        for turn in range(31):
            for task, (_, last) in zip(tasks, bodies, strict=True):
                if turn == last:
                    task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert _is_empty(budget)
        await _read(budget, "d", 8, MIB)

    asyncio.run(burst())


async def _flood(budget: BodyBudget, tenant: str) -> list[BodyHold]:
    """Read parts of large bodies until one is refused."""
    holds: list[BodyHold] = []
    while True:
        holds.append(budget.hold(tenant, 8 * MIB))
        for _ in range(7):
            try:
                await holds[-1].grow(MIB)
            except QueueFullError:
                return holds


async def test_a_flood_of_one_tenant_leaves_another_its_share() -> None:
    budget = a_budget(60 * MIB)
    holds = await _flood(budget, "flood")
    await _read(budget, "other", 8, MIB)
    await _read(budget, "other", 20, 1000)
    for hold in holds:
        hold.release()
    assert _is_empty(budget)


async def test_what_was_announced_and_not_sent_takes_nothing() -> None:
    budget = a_budget(24 * MIB, max_tenants=1)
    slow = [budget.hold("", 8 * MIB) for _ in range(100)]
    for hold in slow:
        await hold.grow(3)
    await _read(budget, "", 8, MIB)
    assert budget.used_bytes == 300
    for hold in slow:
        hold.release()


async def test_a_small_body_has_a_reserve_whoever_waits() -> None:
    budget = a_budget(16 * MIB, 0.05, max_tenants=1)
    large = [budget.hold("", 8 * MIB) for _ in range(3)]
    for hold in large[:2]:
        await hold.grow(6 * MIB)
    waiting = asyncio.create_task(large[2].grow(MIB))
    await asyncio.sleep(0)
    await _read(budget, "", 10, 10_000)
    with pytest.raises(QueueFullError):
        await waiting
    for hold in large:
        hold.release()
    assert _is_empty(budget)


async def test_the_body_that_others_wait_for_has_a_deadline() -> None:
    budget = a_budget(8 * MIB, 30.0)
    hold = budget.hold("a", 8 * MIB)
    await hold.grow(MIB)
    now_s = asyncio.get_running_loop().time()
    assert hold.ends_s is not None
    assert 29 < hold.ends_s - now_s <= 30
    hold.complete()
    assert hold.ends_s is None
    hold.release()
