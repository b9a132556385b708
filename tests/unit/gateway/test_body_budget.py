"""The memory of bodies: nobody's half-read bodies wait for each other, and no tenant takes what is another's."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triptych.errors import QueueFullError
from triptych_gateway.body_budget import BodyBudget, BodyHold

MIB = 1 << 20


async def _read(budget: BodyBudget, tenant: str, chunks: int, chunk_bytes: int) -> None:
    hold = budget.hold(tenant, chunks * chunk_bytes)
    try:
        for _ in range(chunks):
            await hold.grow(chunk_bytes)
            await asyncio.sleep(0)
        hold.complete()
        await asyncio.sleep(0)
    finally:
        hold.release()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 8)), min_size=1, max_size=20), st.sampled_from([1, None]))
def test_all_bodies_of_a_burst_are_read(bodies: list[tuple[str, int]], max_tenants: int | None) -> None:
    async def burst() -> None:
        # Bodies of up to 8 MiB in 24 MiB: most of them find it full when they have read a part.
        budget = BodyBudget(24 * MIB, 20.0, 8 * MIB, max_tenants)
        names = [("a" if max_tenants else tenant, size) for tenant, size in bodies]
        await asyncio.gather(*(_read(budget, tenant, size, MIB) for tenant, size in names))
        assert (budget.used_bytes, budget.num_waiting, budget._lines) == (0, 0, {})

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
    budget = BodyBudget(60 * MIB, 0.0, 8 * MIB)
    holds = await _flood(budget, "flood")
    await _read(budget, "other", 8, MIB)
    await _read(budget, "other", 20, 1000)
    for hold in holds:
        hold.release()
    assert budget.used_bytes == 0


async def test_what_was_announced_and_not_sent_takes_nothing() -> None:
    budget = BodyBudget(24 * MIB, 0.0, 8 * MIB, 1)
    slow = [budget.hold("", 8 * MIB) for _ in range(100)]
    for hold in slow:
        await hold.grow(3)
    await _read(budget, "", 8, MIB)
    assert budget.used_bytes == 300
    for hold in slow:
        hold.release()


async def test_a_small_body_has_a_reserve() -> None:
    budget = BodyBudget(16 * MIB, 0.0, 8 * MIB, 1)
    full = budget.hold("", 16 * MIB)
    await full.grow(16 * MIB)
    await _read(budget, "", 10, 10_000)
    with pytest.raises(QueueFullError):
        await _read(budget, "", 1, MIB)
    full.release()
