"""Hours of mixed load with faults and rolling restarts: every stream ends, and no service grows.

    make soak                            # two hours
    TRIPTYCH_SOAK_S=600 make soak        # ten minutes, of which no trend can be seen

Texts, pictures, seeds, constraints, log probabilities and clients that leave. Again and again an engine or an encoder is killed,
stopped or drained, and once an hour all services are restarted, one after the other. A service's memory is that of its process;
after a restart, its growth is counted from there.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

import httpx
import psutil
import pytest
from support.faults import FAULTS, disturb, processes
from support.stack import Serving, serving
from support.stories import ask, body_of, client_at, streams

SOAK_S = float(os.environ.get("TRIPTYCH_SOAK_S", "7200"))
NUM_STREAMS, NUM_LEAVING = 24, 4
#: Time between two faults, from the end of one, and between two looks at the memory, in seconds.
PAUSE_S, LOOK_S = 30.0, 5.0
#: A process fills its caches and pools in its first minutes, in seconds; what it grows after that, it must not.
FILLING_S = 600.0
MAX_GROWTH_BYTES_PER_HOUR = 24 << 20
#: Time between two rolling restarts of all services, in seconds. Each service then lives for long enough to be measured.
RESTART_S = 3600.0
KINDS = ("frontend", "encoder", "engine")
FLAGS = ["--engines", "2", "--encoders", "2", "--frontends", "2", "--engine.kv-cache-memory", "256M"]
FLAGS += ["--encoder.cache-memory", "64M"]
pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(SOAK_S + 900)]


@pytest.fixture(scope="module")
def stack() -> Iterator[tuple[Serving, str]]:
    with serving(*FLAGS) as server:
        yield server, server.wait_until_started()


class Memory:
    """Resident memory of each process, over the time that it lives."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)

    def look(self, stack: Serving) -> None:
        for kind in ("gateway", *KINDS):
            for process in processes(stack, kind):
                try:
                    self._seen[kind, process.pid].append((time.monotonic(), process.memory_info().rss))
                except psutil.NoSuchProcess:
                    continue

    def growth(self) -> dict[tuple[str, int], tuple[float, float]]:
        """Of each process that lived for long enough: hours, and bytes per hour after its filling (Theil and Sen's slope)."""
        found = {}
        for process, samples in self._seen.items():
            late = [sample for sample in samples if sample[0] - samples[0][0] > FILLING_S]
            if late and late[-1][0] - late[0][0] > FILLING_S:
                half = len(late) // 2
                slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(late[:half], late[-half:], strict=True)]
                found[process] = (late[-1][0] - samples[0][0]) / 3600, 3600 * statistics.median(slopes)
        return found


async def restart_all(stack: Serving) -> None:
    """One service after the other is told to stop, and the supervisor starts it again."""
    for kind in KINDS:
        for process in processes(stack, kind):
            await disturb(stack, kind, "restart", process)


async def leave(client: httpx.AsyncClient, is_over: asyncio.Event) -> None:
    """A client that leaves in the middle of its answers."""
    chance = random.Random(0)
    while not is_over.is_set():
        try:
            async with asyncio.timeout(chance.uniform(0.1, 3)):
                await client.post("/v1/chat/completions", json={**body_of(chance.randrange(64)), "max_tokens": 400})
        except TimeoutError:
            continue


async def test_nothing_grows_and_nothing_is_lost(stack: tuple[Serving, str]) -> None:
    server, url = stack
    end_s, is_over = time.monotonic() + SOAK_S, asyncio.Event()
    memory, ends, happened, chance = Memory(), Counter[str](), Counter[str](), random.Random(0)

    async def listen() -> None:
        async for _, heard in streams([url], is_over, NUM_STREAMS):
            ends[heard.problem or "whole"] += 1

    async def watch() -> None:
        while not is_over.is_set():
            memory.look(server)
            await asyncio.sleep(LOOK_S)

    async with client_at(url) as client, asyncio.TaskGroup() as tasks:
        for work in (listen(), watch(), *(leave(client, is_over) for _ in range(NUM_LEAVING))):
            tasks.create_task(work)
        try:
            restart_s = time.monotonic() + RESTART_S / 2
            while time.monotonic() < end_s:
                if time.monotonic() > restart_s:
                    happened["all restarted"] += 1
                    await restart_all(server)
                    restart_s += RESTART_S
                else:
                    kind, fault = FAULTS[happened.total() % len(FAULTS)]
                    happened[f"{kind} {fault}"] += 1
                    first, *others = processes(server, kind)
                    # The first of a kind is never killed, so that its memory is seen for long enough.
                    await disturb(server, kind, fault, others[0] if fault == "kill" else chance.choice([first, *others]))
                await asyncio.sleep(min(PAUSE_S, max(0.0, end_s - time.monotonic())))
        finally:
            is_over.set()  # also when a fault was not survived
    assert (await asyncio.to_thread(idle_blocks, url)) == 0, "blocks that nobody gave back"
    print(f"{dict(happened)}; {dict(ends)}")
    for (kind, pid), (hours, growth) in sorted(memory.growth().items()):
        print(f"{kind} {pid}: {hours:.2f} h, {growth / 2**20:+.1f} MiB per hour")
    assert set(ends) == {"whole"}
    if SOAK_S > RESTART_S:
        assert {kind for kind, _ in memory.growth()} == {"gateway", *KINDS}
    assert {process: growth for process, (_, growth) in memory.growth().items() if growth > MAX_GROWTH_BYTES_PER_HOUR} == {}


def idle_blocks(url: str) -> int:
    """Blocks of the KV caches that are held although nothing runs."""
    until_s = time.monotonic() + 30
    while True:
        engines = httpx.get(f"{url}/load", trust_env=False).raise_for_status().json()["engines"]
        held = sum(engine["num_blocks"] - engine["num_free_blocks"] for engine in engines if engine["num_blocks"])
        if not held or time.monotonic() > until_s:
            return int(held)
        time.sleep(0.5)


async def test_an_answer_is_whole(stack: tuple[Serving, str]) -> None:
    """After all of it."""
    _, url = stack
    async with client_at(url) as client:
        assert not (await ask(client, 0)).problem
