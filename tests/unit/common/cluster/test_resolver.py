"""Resolvers report whole sets, at first and after each change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from support.waiting import until
from triptych_common.cluster import resolver as resolver_module
from triptych_common.cluster.resolver import DnsResolver, JoinedResolver, Resolver, StaticResolver, resolver_of
from triptych_common.errors import StartupError


@asynccontextmanager
async def watched(resolver: Resolver) -> AsyncIterator[list[tuple[str, ...]]]:
    """The sets that a resolver reported so far."""
    reported: list[tuple[str, ...]] = []
    task = asyncio.create_task(resolver.watch(reported.append))
    try:
        yield reported
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Names:
    """A name server of one name."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: Sequence[str] | OSError = addresses
        self.num_lookups = 0

    async def lookup(self, host: str) -> Sequence[str]:
        assert host == "encoders"
        self.num_lookups += 1
        if isinstance(self.addresses, OSError):
            raise self.addresses
        return self.addresses


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "DNS_RETRY_S", 0.001)


async def test_static_addresses_are_reported_once_and_stay() -> None:
    async with watched(StaticResolver(["a:1", "b:2", "a:1"])) as reported:
        await until(lambda: bool(reported))
        await asyncio.sleep(0)
        assert reported == [("a:1", "b:2")]


async def test_a_name_stands_for_all_its_addresses_and_is_followed() -> None:
    names = Names("10.0.0.2", "10.0.0.1", "fd00::1")
    async with watched(DnsResolver("encoders", 50052, 0.001, names.lookup)) as reported:
        await until(lambda: bool(reported))
        names.addresses = ("10.0.0.3",)
        await until(lambda: len(reported) == 2)
    assert reported == [("10.0.0.1:50052", "10.0.0.2:50052", "[fd00::1]:50052"), ("10.0.0.3:50052",)]


async def test_a_name_server_that_is_away_says_nothing_about_the_services() -> None:
    names = Names("10.0.0.1")
    async with watched(DnsResolver("encoders", 1, 0.001, names.lookup)) as reported:
        await until(lambda: bool(reported))
        names.addresses = OSError("no answer")
        before = names.num_lookups
        await until(lambda: names.num_lookups > before + 3)
        names.addresses = ("10.0.0.1",)
        before = names.num_lookups
        await until(lambda: names.num_lookups > before + 3)
    assert reported == [("10.0.0.1:1",)]


async def test_a_hint_brings_the_next_lookup_forward() -> None:
    names = Names("10.0.0.1")
    resolver = DnsResolver("encoders", 1, 3600, names.lookup)
    async with watched(resolver) as reported:
        await until(lambda: bool(reported))
        names.addresses = ("10.0.0.9",)

        def moved() -> bool:
            resolver.resolve_now()
            return len(reported) == 2

        await until(moved)
    assert reported[-1] == ("10.0.0.9:1",)


async def test_several_resolvers_report_as_one() -> None:
    names = Names("10.0.0.1")
    joined = JoinedResolver([StaticResolver(["a:1", "10.0.0.1:1"]), DnsResolver("encoders", 1, 0.001, names.lookup)])
    async with watched(joined) as reported:
        await until(lambda: len(reported) == 2)
        names.addresses = ("10.0.0.2",)
        await until(lambda: len(reported) == 3)
    assert reported[-2:] == [("a:1", "10.0.0.1:1"), ("a:1", "10.0.0.1:1", "10.0.0.2:1")]


@pytest.mark.parametrize(
    ("targets", "kinds"),
    [
        (["127.0.0.1:1", "localhost:2", "[::1]:3"], StaticResolver),
        (["encoders:50052"], DnsResolver),
        (["dns:localhost:1"], DnsResolver),
        (["static:encoders:50052"], StaticResolver),
        (["127.0.0.1:1", "encoders:1"], JoinedResolver),
        ([], StaticResolver),
    ],
)
def test_what_targets_mean(targets: list[str], kinds: type) -> None:
    assert type(resolver_of(targets)) is kinds


@pytest.mark.parametrize("target", ["encoders", "encoders:", ":1", "encoders:0", "encoders:99999", "dns:encoders"])
def test_what_is_no_target_is_named(target: str) -> None:
    with pytest.raises(StartupError, match=target):
        resolver_of([target])


async def test_what_is_no_host_name_is_a_name_that_is_not_found(caplog: pytest.LogCaptureFixture) -> None:
    async with watched(DnsResolver("a..b", 50052, 0.001)) as reported:
        await until(lambda: "it is no host name" in caplog.text)
        assert reported == []
