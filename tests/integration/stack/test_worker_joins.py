"""`triptych worker` joins a running suite through a registry: used once it is ready, gone once it is killed. No outage matters.

TRIPTYCH_OUTAGE_S=60 pytest -m long -s tests/integration/stack/test_worker_joins.py
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from redis import Redis
from support.shared_store import running_store, server_program
from support.stack import Serving, serving
from support.waiting import until
from triptych.v1 import common_pb2, control_pb2, control_pb2_grpc
from triptych_cli.stack.ports import free_port
from triptych_common.rpc.registration import LEASE_S
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.model, pytest.mark.timeout(300), pytest.mark.long]
NUM_CLIENTS = 8
#: How long the registry's server is stopped.
OUTAGE_S = float(os.environ.get("TRIPTYCH_OUTAGE_S", "10"))
_KV_CACHE = "256M"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_store(server_program(), tmp_path_factory.mktemp("registry")) as url:
        yield url


@pytest.fixture(scope="module")
def suite(registry: str) -> Iterator[tuple[Serving, str]]:
    """A suite of one machine whose engine and encoder are in the registry, and whose frontend finds engines there."""
    flags = ["--engine.registry", registry, "--encoder.registry", registry, "--frontend.engine-addresses", registry]
    with serving(*flags, "--engine.kv-cache-memory", _KV_CACHE) as server:
        yield server, server.wait_until_started()


@contextlib.contextmanager
def worker(registry: str, control_port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An engine that is started by itself."""
    port = str(free_port("127.0.0.1"))
    own = ["--host", "127.0.0.1", "--port", port, "--advertised-address", f"127.0.0.1:{port}", "--control-port", str(control_port)]
    command = [sys.executable, "-c", "from triptych_cli.main import app; app()", "worker", "engine", "--registry", registry]
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--kv-cache-memory", _KV_CACHE, *own], stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            finally:
                process.kill()
                process.wait()


async def time_of_readiness(process: subprocess.Popen[bytes], control_port: int) -> float:
    """Waits until the service says that it is ready. Returns the time, in seconds of the monotonic clock."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{control_port}") as channel:
        control = control_pb2_grpc.ControlServiceStub(channel)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                info = await control.GetServerInfo(control_pb2.GetServerInfoRequest())
                if info.instance.state == common_pb2.SERVER_STATE_SERVING:
                    return time.monotonic()
            assert process.poll() is None, "the worker ended"
            await asyncio.sleep(0.05)


async def num_engines(url: str) -> int:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        return len((await client.get("/load")).raise_for_status().json()["engines"])


async def wait_for_engines(url: str, number: int, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while await num_engines(url) != number:  # noqa: ASYNC110 - it asks over HTTP
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def asking(url: str) -> AsyncIterator[Counter[str]]:
    """Clients that ask one question after the other during the block, and how their answers ended."""
    ends: Counter[str] = Counter()

    async def client_of(number: int) -> None:
        content = f"Tell me a story about the number {number}."
        body = {"model": DEFAULT_MODEL, "max_tokens": 24, "temperature": 0, "messages": [{"role": "user", "content": content}]}
        while not is_over:
            response = await client.post("/v1/chat/completions", json=body)
            ends["whole" if response.status_code == 200 else response.text] += 1

    is_over = False
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client, asyncio.TaskGroup() as tasks:
        for number in range(NUM_CLIENTS):
            tasks.create_task(client_of(number))
        await until(lambda: ends.total() >= NUM_CLIENTS, 60)
        try:
            yield ends
        finally:
            is_over = True


async def test_a_worker_joins_and_is_killed(suite: tuple[Serving, str], registry: str, tmp_path: Path) -> None:
    url = suite[1]
    async with asking(url) as ends:
        control_port = free_port("127.0.0.1")
        with worker(registry, control_port, tmp_path / "log") as process:
            async with asyncio.timeout(120):
                ready_s = await time_of_readiness(process, control_port)
            await wait_for_engines(url, 2, 10)
            joined_s = time.monotonic() - ready_s
            before = ends.total()
            await until(lambda: ends.total() >= before + 4 * NUM_CLIENTS, 60)
            process.kill()
            killed_s = time.monotonic()
            await wait_for_engines(url, 1, 10)
            gone_s = time.monotonic() - killed_s
            listed = list(Redis.from_url(registry).keys("*:engine:*"))  # type: ignore[arg-type]
            before = ends.total()
            await until(lambda: ends.total() >= before + 2 * NUM_CLIENTS, 60)
    print(f"used {joined_s:.2f} s after it was ready, gone {gone_s:.2f} s after it was killed; {dict(ends)}, {len(listed)} listed")
    assert set(ends) == {"whole"}
    assert joined_s < 1.0
    assert gone_s < LEASE_S + 1.0


async def test_the_registry_is_away_and_comes_back_empty(suite: tuple[Serving, str], registry: str, tmp_path: Path) -> None:
    url = suite[1]
    client = Redis.from_url(registry)
    with worker(registry, free_port("127.0.0.1"), tmp_path / "log"):
        await wait_for_engines(url, 2, 120)
        server = psutil.Process(client.info()["process_id"])  # type: ignore[index]
        numbers: set[int] = set()
        async with asking(url) as ends:
            server.suspend()
            try:
                end_s = time.monotonic() + OUTAGE_S
                while time.monotonic() < end_s:
                    numbers.add(await num_engines(url))
                    await asyncio.sleep(0.2)
            finally:
                server.resume()
            client.flushall()
            end_s = time.monotonic() + LEASE_S + 2
            while time.monotonic() < end_s:
                numbers.add(await num_engines(url))
                await asyncio.sleep(0.2)
        listed = list(client.keys("*:engine:*"))  # type: ignore[arg-type]
    print(f"away for {OUTAGE_S:.0f} s: {dict(ends)}, engines {numbers}")
    assert set(ends) == {"whole"}
    assert numbers == {2}
    assert len(listed) == 2, "both have entered themselves again"
