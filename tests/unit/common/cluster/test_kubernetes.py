"""EndpointSlices: what an address means, and that the set is the truth after anything that an API server does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster, User
from support.kubernetes.slices import SliceServer, endpoint, serving_slices
from support.waiting import until
from triptych.errors import StartupError
from triptych_common.cluster import kubernetes
from triptych_common.cluster.kubernetes import KubernetesResolver
from triptych_common.cluster.resolution import resolver_of

SERVICE, PORT = "engine", 50053
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: a, user: {token: t}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("RELIST_S", 5), ("RETRY_S", 0.02), ("SETTLE_S", 1.0)):
        monkeypatch.setattr(kubernetes, name, seconds)


def client_of(url: str) -> Any:
    return AsyncClient(KubeConfig.from_one(cluster=Cluster(server=url), user=User(), namespace="default"))


@asynccontextmanager
async def told_of(url: str, service: str = SERVICE) -> AsyncIterator[tuple[list[tuple[str, ...]], KubernetesResolver]]:
    """The sets that a reader was told of, and the reader."""
    told: list[tuple[str, ...]] = []
    resolver = KubernetesResolver(service, "default", PORT, lambda: client_of(url))
    task = asyncio.create_task(resolver.watch(told.append))
    try:
        await until(lambda: bool(told))
        yield told, resolver
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("conditions", "is_there"),
    [
        ({}, True),  # what is not said means yes
        ({"ready": True}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, True),  # it hands over what it has
        ({"ready": False, "serving": False, "terminating": True}, False),
        ({"ready": False, "serving": True, "terminating": False}, False),
        ({"ready": True, "serving": False, "terminating": False}, True),  # a Service that publishes addresses that are not ready
    ],
)
async def test_the_conditions_of_an_endpoint(conditions: dict[str, bool], is_there: bool) -> None:
    async with serving_slices() as (server, url):
        server.put("a", SERVICE, [endpoint("10.0.0.1", **conditions), endpoint("10.0.0.9")])
        async with told_of(url) as (told, _):
            assert told == [("10.0.0.1:50053", "10.0.0.9:50053") if is_there else ("10.0.0.9:50053",)]


async def test_slices_of_a_service_are_joined_and_others_are_not() -> None:
    async with serving_slices() as (server, url):
        server.put("a", SERVICE, [endpoint("10.0.0.1")])
        server.put("b", SERVICE, [endpoint("10.0.0.2")])
        server.put("six", SERVICE, [endpoint("fd00::1")], "IPv6")
        server.put("names", SERVICE, [endpoint("engine.example")], "FQDN")
        server.put("other", "encoder", [endpoint("10.0.0.3")])
        async with told_of(url) as (told, _):
            assert told[-1] == ("10.0.0.1:50053", "10.0.0.2:50053")
            server.put("b", SERVICE, [endpoint("10.0.0.2"), endpoint("10.0.0.4")])
            await until(lambda: told[-1] == ("10.0.0.1:50053", "10.0.0.2:50053", "10.0.0.4:50053"))
            server.delete("a")
            server.delete("b")
            await until(lambda: told[-1] == ("[fd00::1]:50053",))


async def test_a_deletion_that_no_watch_told_of_is_seen() -> None:
    """vllm-project/production-stack #1091: a pod that was deleted while the watch was cut stayed in the set for ever."""
    async with serving_slices() as (server, url):
        server.put("a", SERVICE, [endpoint("10.0.0.1")])
        server.put("b", SERVICE, [endpoint("10.0.0.2")])
        async with told_of(url) as (told, _):
            server.is_mute = True
            server.delete("a")
            server.cut()
            server.is_mute = False
            await until(lambda: told[-1] == ("10.0.0.2:50053",))


async def test_a_lost_connection_makes_a_silent_watch_start_anew() -> None:
    async with serving_slices() as (server, url):
        server.put("a", SERVICE, [endpoint("10.0.0.1")])
        async with told_of(url) as (told, resolver):
            server.is_mute = True
            server.put("a", SERVICE, [endpoint("10.0.0.2")])
            await asyncio.sleep(0.1)
            assert told == [("10.0.0.1:50053",)]
            resolver.resolve_now()
            await until(lambda: told[-1] == ("10.0.0.2:50053",), 2)


async def test_an_outage_drops_nobody_even_if_the_server_comes_back_empty() -> None:
    async with serving_slices() as (server, url):
        server.put("a", SERVICE, [endpoint("10.0.0.1"), endpoint("10.0.0.2")])
        async with told_of(url) as (told, _):
            server.is_up = False
            server.cut()
            await asyncio.sleep(0.2)
            server.forget()
            server.is_up = True
            await asyncio.sleep(0.1)
            server.put("a", SERVICE, [endpoint("10.0.0.2")])  # the controllers know one pod so far
            await asyncio.sleep(0.05)
            assert told == [("10.0.0.1:50053", "10.0.0.2:50053")]
            server.put("a", SERVICE, [endpoint("10.0.0.2"), endpoint("10.0.0.3")])
            await until(lambda: "10.0.0.3:50053" in told[-1])
            resolved = ("10.0.0.2:50053", "10.0.0.3:50053")
            await until(lambda: told[-1] == resolved, 3)  # once the time to settle is over, and not at the next regular reading


async def test_a_watch_that_is_cut_again_and_again_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    """Proxies cut what is silent: an address that is gone leaves the set all the same."""
    async with serving_slices() as (server, url):
        server.put("a", SERVICE, [endpoint("10.0.0.1"), endpoint("10.0.0.2")])
        async with told_of(url) as (told, _):
            for number in range(3, 8):
                await until(lambda: server.num_watches == 1)
                server.cut()
                await until(lambda: server.num_watches == 0)
                server.put("a", SERVICE, [endpoint("10.0.0.1"), endpoint(f"10.0.0.{number}")])
                expected = ("10.0.0.1:50053", f"10.0.0.{number}:50053")
                await until(lambda expected=expected: told[-1] == expected, 0.8)  # type: ignore[misc]
    assert "cannot be read" not in caplog.text


async def test_a_server_with_another_database_has_to_settle() -> None:
    """It was away for so short a time that no reading failed."""
    async with serving_slices() as (server, url):
        for _ in range(5):
            server.put("a", SERVICE, [endpoint("10.0.0.1"), endpoint("10.0.0.2")])
        async with told_of(url) as (told, _):
            await until(lambda: server.num_watches == 1)
            server.lose()
            server.put("a", SERVICE, [endpoint("10.0.0.2")])
            server.cut()
            await asyncio.sleep(0.3)
            assert told == [("10.0.0.1:50053", "10.0.0.2:50053")]
            await until(lambda: told[-1] == ("10.0.0.2:50053",), 3)


async def test_a_refusal_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    async with serving_slices() as (server, url):
        server.is_up = False
        resolver = KubernetesResolver(SERVICE, "default", PORT, lambda: client_of(url))
        task = asyncio.create_task(resolver.watch(lambda found: None))
        await until(lambda: "etcd is away" in caplog.text)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


POD = st.integers(1, 6)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.sets(POD, max_size=4)),
        st.tuples(st.just("delete"), st.sampled_from("abc")),
        st.tuples(st.sampled_from(["cut", "compact", "away", "wait", "hint"])),
    ),
    max_size=12,
)


@settings(max_examples=20)
@given(OPERATIONS)
def test_the_set_is_the_truth_in_the_end(operations: list[Any]) -> None:
    asyncio.run(_follow(operations))


async def _follow(operations: list[Any]) -> None:
    async with serving_slices() as (server, url):
        server.put("a", SERVICE, [endpoint("10.0.0.1")])
        async with told_of(url) as (told, resolver):
            for name, *arguments in operations:
                await _do(server, resolver, told, name, arguments)
            await asyncio.sleep(0.02)
            resolver.resolve_now()
            truth = {f"{one['addresses'][0]}:{PORT}" for found in server.slices.values() for one in found["endpoints"]}

            def is_true() -> bool:
                resolver.resolve_now()
                return not truth or set(told[-1]) == truth

            await until(is_true, 5)
            assert all(told), "there never are none"


async def _do(
    server: SliceServer, resolver: KubernetesResolver, told: list[tuple[str, ...]], name: str, arguments: list[Any]
) -> None:
    if name == "put":
        server.put(arguments[0], SERVICE, [endpoint(f"10.0.0.{pod}") for pod in sorted(arguments[1])])
    elif name == "delete":
        server.delete(arguments[0])
    elif name == "cut":
        server.cut()
    elif name == "compact":
        server.compact()
        server.cut()
    elif name == "hint":
        resolver.resolve_now()
    elif name == "wait":
        await asyncio.sleep(0.03)
    else:
        await asyncio.sleep(0.03)  # what it has said has arrived
        server.is_up = False
        server.cut()
        before = len(told)
        await asyncio.sleep(0.05)
        assert len(told) == before, "while the server is away, the set stays"
        server.is_up = True


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


@pytest.mark.parametrize("content", [None, "a: [", "{}"])
def test_what_is_missing_is_told_at_the_start(kubeconfig: Path, content: str | None) -> None:
    if content is not None:
        kubeconfig.write_text(content)
    with pytest.raises(StartupError, match="a service account's token or a kubeconfig"):
        resolver_of(["kubernetes:engine:50053"], "engine")


@pytest.mark.parametrize(
    "target", ["engine.ns.svc:1", "10.0.0.1:50053", "[::1]:5", ".ns:1", "engine.:1", "Engine:1", "engine:0", "engine", "e_x:1"]
)
def test_targets_that_name_no_service_are_refused(target: str) -> None:
    with pytest.raises(StartupError, match="kubernetes:service"):
        resolver_of([f"kubernetes:{target}"], "engine")


def test_targets_of_kubernetes(kubeconfig: Path) -> None:
    kubeconfig.write_text(KUBECONFIG)
    assert isinstance(resolver_of(["kubernetes:engine.default:50053"], "engine"), KubernetesResolver)
    assert isinstance(resolver_of(["kubernetes:engine:50053"], "engine"), KubernetesResolver)
