"""Fair shares: nobody's flood takes what another tenant may have."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from triptych_common.host.fair_share import FairShare

_TENANTS = st.sampled_from("abcd")
_CAPACITY = 60


class ShareMachine(RuleBasedStateMachine):
    """Tenants take and give back items that are at most as large as the smallest share."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, list[int]] = {tenant: [] for tenant in "abcd"}

    @initialize(max_tenants=st.sampled_from([None, 4, 6]))
    def start(self, max_tenants: int | None) -> None:
        self.shares = FairShare(_CAPACITY, max_tenants)

    @rule(tenant=_TENANTS, amount=st.integers(1, 12))
    def take(self, tenant: str, amount: int) -> None:
        shares = self.shares
        before, free = shares.used_by(tenant), shares.free
        is_taken = shares.take(tenant, amount)
        share = shares.share(tenant)
        if is_taken:
            self.held[tenant].append(amount)
            assert free >= amount
            assert shares.used_by(tenant) <= share or before == 0 or shares.free >= share
        elif before + amount <= share:
            assert any(shares.used_by(other) > share for other in self.held if other != tenant)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        tenant = data.draw(st.sampled_from([name for name, items in self.held.items() if items]))
        self.shares.give_back(tenant, self.held[tenant].pop())

    @invariant()
    def counts_are_right(self) -> None:
        if hasattr(self, "shares"):
            assert {name: self.shares.used_by(name) for name in self.held} == {name: sum(own) for name, own in self.held.items()}
            assert self.shares.used == sum(map(sum, self.held.values())) <= _CAPACITY


TestShares = ShareMachine.TestCase
TestShares.settings = settings(max_examples=40, stateful_step_count=25)


class EvictionMachine(RuleBasedStateMachine):
    """Items that can be dropped: the whole capacity is used, and only those who hold most lose something."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = FairShare(_CAPACITY)
        self.items: dict[str, deque[int]] = {tenant: deque() for tenant in "abcd"}

    @rule(tenant=_TENANTS, amount=st.integers(1, _CAPACITY // 4))
    def add(self, tenant: str, amount: int) -> None:
        while (evictee := self.shares.evictee(tenant, amount)) is not None:
            num_active = len({name for name, items in self.items.items() if items} | {tenant})
            holds = self.shares.used_by(evictee) + (amount if evictee == tenant else 0)
            assert holds > _CAPACITY / num_active
            self.shares.give_back(evictee, self.items[evictee].popleft())
        self.shares.add(tenant, amount)
        self.items[tenant].append(amount)
        assert self.shares.used == sum(map(sum, self.items.values())) <= _CAPACITY


TestEviction = EvictionMachine.TestCase
TestEviction.settings = settings(max_examples=40, stateful_step_count=25)


def _fill(shares: FairShare, tenant: str) -> int:
    while shares.take(tenant):
        pass
    return shares.used_by(tenant)


def test_flood_leaves_a_share_for_the_next_tenant():
    shares = FairShare(120)
    assert _fill(shares, "flood") == 60
    assert _fill(shares, "second") == 40
    # The third comes before the first two gave anything back. It gets what is left, and the others get nothing more.
    assert _fill(shares, "third") == 20
    assert not shares.may_take("flood")
    shares.give_back("flood", 30)
    assert _fill(shares, "third") == 30
    assert _fill(shares, "flood") == 30


def test_alone_a_tenant_that_nobody_can_follow_gets_everything():
    shares = FairShare(100, max_tenants=1)
    assert _fill(shares, "only") == 100


def test_item_larger_than_a_share_is_taken_by_a_tenant_that_holds_nothing():
    shares = FairShare(100)
    assert shares.take("a", 90)
    assert not shares.take("a", 1)
    assert shares.take("b", 10)


def test_more_tenants_than_units_have_one_each():
    shares = FairShare(3)
    assert [shares.take(tenant) for tenant in "abcd"] == [True, True, True, False]


def test_giving_back_more_than_is_held_is_an_error():
    shares = FairShare(3)
    shares.add("a", 2)
    with pytest.raises(ValueError, match="gives back 3 and holds 2"):
        shares.give_back("a", 3)


def test_item_larger_than_an_equal_part_evicts_nobody():
    shares = FairShare(3)
    assert shares.evictee("a", 3) is None
    shares.add("b", 1)
    with pytest.raises(ValueError, match="more than this tenant's part of 1"):
        shares.evictee("a", 2)


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_waiting_is_in_order_and_those_who_hold_least_are_first():
    shares, served = FairShare(12), list[str]()

    async def wait(tenant: str, name: str, amount: int) -> None:
        assert await shares.take_when_free(tenant, amount, 30)
        served.append(name)

    shares.add("rich", 10)
    shares.add("poor", 2)
    waiting = [
        asyncio.create_task(wait(*args)) for args in (("rich", "r1", 1), ("new", "n1", 2), ("new", "n2", 1), ("poor", "p1", 1))
    ]
    await _settle()
    assert (served, shares.num_waiting) == ([], 4)
    shares.give_back("rich", 1)
    await _settle()
    assert served == []  # one is free, and it is kept for the first of `new`, which needs two
    shares.give_back("rich", 2)
    await _settle()
    assert served[:1] == ["n1"]
    shares.give_back("rich", 7)
    await asyncio.gather(*waiting)
    assert served.index("n1") < served.index("n2")
    assert (shares.used, shares.waits) == (7, False)


async def test_waiting_ends_at_the_timeout_and_when_the_caller_leaves():
    shares = FairShare(4, max_tenants=1)
    shares.add("a", 4)
    assert not await shares.take_when_free("a", 1, 0.01)
    waiting = asyncio.create_task(shares.take_when_free("a", 1, 30))
    await _settle()
    shares.give_back("a", 1)  # granted, and the caller leaves before it runs again
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (shares.used, shares.num_waiting) == (3, 0)


async def test_those_who_wait_are_not_overtaken_by_their_own_tenant():
    shares = FairShare(4, max_tenants=1)
    shares.add("a", 3)
    waiting = asyncio.create_task(shares.take_when_free("a", 2, 30))
    await _settle()
    assert not shares.take("a", 1)
    shares.give_back("a", 3)
    assert await waiting
