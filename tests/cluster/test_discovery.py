"""`discovery: kubernetes` on a real API server: what accounts may read, and real processes behind Pods that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from lightkube import AsyncClient, KubeConfig
from support.chart import FULL
from support.kubernetes.control_plane import ControlPlane, eventually
from support.kubernetes.kubelet import ADDRESS, Kubelet
from support.kubernetes.release import Release
from support.mock import script
from support.waiting import until
from triptych_cli.stack.ports import free_port
from triptych_common.cluster.kubernetes import KubernetesResolver

from tools.helm.render import CHART, RELEASE

pytestmark = pytest.mark.cluster
ENGINE = f"{FULL}-smollm2-135m-vision-engine"
#: Addresses of this machine while a test runs; an EndpointSlice takes none of the loopback network.
HOSTS = ("10.213.0.1", "10.213.0.2", "10.213.0.3")
#: Seconds that the API server is away; docs say a minute.
OUTAGE_S = float(os.environ.get("TRIPTYCH_OUTAGE_S", "20"))


def client_of(plane: ControlPlane, account: str, namespace: str) -> Any:
    """A client with the token of a service account, as in its pod."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": plane.call("POST", path, body)["status"]["token"]}
    return AsyncClient(KubeConfig.from_dict(config).get())


@asynccontextmanager
async def told_of(resolver: KubernetesResolver) -> AsyncIterator[list[tuple[str, ...]]]:
    told: list[tuple[str, ...]] = []
    task = asyncio.create_task(resolver.watch(told.append))
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_accounts_of_the_chart_find_pods_that_come_and_go(
    plain_cluster: ControlPlane, release: Release, kubelet: Kubelet, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(release.helm, "install", RELEASE, str(CHART), values={"discovery": "kubernetes"})

    def resolver(role: str) -> KubernetesResolver:
        account = f"{FULL}-{role}"
        return KubernetesResolver(ENGINE, release.namespace, 50053, lambda: client_of(plain_cluster, account, release.namespace))

    def pods() -> set[str]:
        found = release.list("pods").values()
        mine = [pod for pod in found if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "engine"]
        return {f"{pod['status']['podIP']}:50053" for pod in mine if pod["status"].get("podIP")}

    async with told_of(resolver("frontend")) as told:
        await until(lambda: bool(told and told[-1]), 60)
        assert set(told[-1]) == pods()
        scale = f"/apis/apps/v1/namespaces/{release.namespace}/deployments/{ENGINE}/scale"
        await asyncio.to_thread(plain_cluster.merge, scale, {"spec": {"replicas": 3}})
        await until(lambda: len(told[-1]) == 3, 60)
        assert set(told[-1]) == pods()
        await asyncio.to_thread(plain_cluster.merge, scale, {"spec": {"replicas": 1}})
        await until(lambda: len(told[-1]) == 1, 60)
        assert set(told[-1]) == pods()
    async with told_of(resolver("encoder")) as told:
        await until(lambda: "forbidden" in caplog.text, 30)
        assert not told


@pytest.fixture
def hosts() -> Iterator[tuple[str, ...]]:
    """The addresses, on this machine's loopback device."""
    for host in HOSTS:
        if subprocess.run(["ip", "address", "add", f"{host}/32", "dev", "lo"], check=False).returncode:
            pytest.fail("this test adds addresses to the loopback device, which needs root and the program ip")
    yield HOSTS
    for host in HOSTS:
        subprocess.run(["ip", "address", "del", f"{host}/32", "dev", "lo"], check=False)


class Door:
    """The way to the API server, which can be shut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()
        self.is_open = True

    async def enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open:
            writer.transport.abort()
            return
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._open |= {writer, there_writer}
        with contextlib.suppress(OSError):
            await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
        self._open -= {writer, there_writer}

    def shut(self) -> None:
        self.is_open = False
        for writer in self._open:
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@contextmanager
def mock(host: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a frontend."""
    command = [sys.executable, "-m", "triptych_mock", "--host", host, "--port", str(port), "--insecure-grpc"]
    with subprocess.Popen([*command, "--control-port", "0"], stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def gateway(port: int, target: str, kubeconfig: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "triptych_gateway", "--port", str(port), "--grpc-port", "0"]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    with subprocess.Popen([*command, "--frontend-addresses", target, "--no-access-log"], env=environment) as process:
        try:
            yield
        finally:
            process.kill()


def pod(plane: ControlPlane, namespace: str, host: str) -> str:
    """Make a Pod that the process at an address stands for."""
    name = f"frontend-{host.rpartition('.')[2]}"
    container = {
        "name": "frontend",
        "image": "triptych-frontend",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    metadata = {"name": name, "namespace": namespace, "labels": {"app": "frontend"}, "annotations": {ADDRESS: host}}
    spec = {"containers": [container], "securityContext": security}
    plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


@asynccontextmanager
async def asked_all_the_time(url: str) -> AsyncIterator[list[str]]:
    """Ask for answers while the block runs; yields what went wrong."""
    wrong: list[str] = []
    body = {"model": "mock", "messages": [{"role": "user", "content": script(numTokens=20, tokenS=0.01)}]}

    async def ask(client: httpx.AsyncClient) -> None:
        while True:
            answer = await client.post("/v1/chat/completions", json=body)
            if answer.status_code != 200:
                wrong.append(answer.text)

    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        asking = [asyncio.create_task(ask(client)) for _ in range(4)]
        try:
            yield wrong
        finally:
            for task in asking:
                task.cancel()
            ended = await asyncio.gather(*asking, return_exceptions=True)
    wrong += [repr(error) for error in ended if not isinstance(error, asyncio.CancelledError)]


async def test_real_processes_behind_pods(
    plain_cluster: ControlPlane, release: Release, kubelet: Kubelet, hosts: tuple[str, ...], tmp_path: Path
) -> None:
    """A Pod is used within a second of its endpoint; one that ends, not; and the API server's absence is no event."""
    port, place = free_port("127.0.0.1"), f"/apis/discovery.k8s.io/v1/namespaces/{release.namespace}/endpointslices"
    spec = {"clusterIP": "None", "selector": {"app": "frontend"}, "ports": [{"port": port}]}
    metadata = {"name": "frontend", "namespace": release.namespace}
    plain_cluster.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    config = yaml.safe_load(plain_cluster.kubeconfig.read_text())
    server = config["clusters"][0]["cluster"]
    door = Door(int(server["server"].rpartition(":")[2]))
    listening = await asyncio.start_server(door.enter, "127.0.0.1", 0)
    server["server"] = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))

    def endpoints() -> set[str]:
        slices = plain_cluster.list(place)
        return {address for one in slices for endpoint in one["endpoints"] or () for address in endpoint["addresses"]}

    async with listening, AsyncExitStack() as stack:
        for host in hosts:
            stack.enter_context(mock(host, port))
        http_port = free_port("127.0.0.1")
        url = f"http://127.0.0.1:{http_port}"
        first = pod(plain_cluster, release.namespace, hosts[0])
        await asyncio.to_thread(eventually, lambda: endpoints() == {hosts[0]}, "an endpoint")
        stack.enter_context(gateway(http_port, f"kubernetes:frontend.{release.namespace}:{port}", kubeconfig))

        async def serving(count: int, timeout_s: float) -> float:
            """Wait until the gateway uses so many frontends; returns the seconds."""
            start_s = time.monotonic()
            async with asyncio.timeout(timeout_s), httpx.AsyncClient(trust_env=False) as client:
                while True:
                    with contextlib.suppress(httpx.TransportError):
                        answer = await client.get(f"{url}/load")
                        if answer.is_success and [one["state"] for one in answer.json()["frontends"]] == ["serving"] * count:
                            return time.monotonic() - start_s
                    await asyncio.sleep(0.02)

        await serving(1, 60)
        async with asked_all_the_time(url) as wrong:
            pod(plain_cluster, release.namespace, hosts[1])
            await asyncio.to_thread(eventually, lambda: endpoints() == set(hosts[:2]), "a second endpoint")
            joined_s = await serving(2, 10)
            door.shut()
            third = pod(plain_cluster, release.namespace, hosts[2])
            await asyncio.to_thread(plain_cluster.call, "DELETE", third)
            await asyncio.sleep(OUTAGE_S)
            door.is_open = True
            await serving(2, 5)
            await asyncio.to_thread(plain_cluster.call, "DELETE", first)
            await serving(1, 90)
        assert not wrong
        print(f"a pod is used {joined_s:.2f} s after its endpoint")
        assert joined_s < 1.0
