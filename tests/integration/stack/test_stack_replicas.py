"""Two engines, two encoders, two frontends: one of a kind is killed under load, and nobody is refused."""

from __future__ import annotations

import asyncio
import base64
import io
import random
import re
from collections import Counter
from collections.abc import Iterator

import httpx
import psutil
import pytest
from PIL import Image
from support.stack import Serving, serving
from support.waiting import until
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.model, pytest.mark.timeout(300), pytest.mark.long]
NUM_STREAMS = 64
#: Load after the killed service was started again, in seconds.
AFTER_S = 1.5


@pytest.fixture(scope="module")
def replicas() -> Iterator[tuple[Serving, str]]:
    flags = ["--engines", "2", "--encoders", "2", "--frontends", "2", "--engine.kv-cache-memory", "256M"]
    with serving(*flags) as stack:
        yield stack, stack.wait_until_started()


def processes(stack: Serving, kind: str) -> list[psutil.Process]:
    """The processes of a kind of service."""
    children = psutil.Process(stack.process.pid).children()
    return [child for child in children if f"triptych_{kind}" in child.cmdline()]


def picture(chance: random.Random) -> str:
    """One that no encoder has seen."""
    file = io.BytesIO()
    Image.frombytes("RGB", (24, 24), chance.randbytes(24 * 24 * 3)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


async def one(client: httpx.AsyncClient, chance: random.Random) -> str:
    """One streamed request, half of them with a picture; how it ended."""
    content: list[dict[str, object]] = [{"type": "text", "text": "Tell me something."}]
    if chance.random() < 0.5:
        content.insert(0, {"type": "image_url", "image_url": {"url": picture(chance)}})
    body = {"model": DEFAULT_MODEL, "stream": True, "max_tokens": 12, "messages": [{"role": "user", "content": content}]}
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        text = (await response.aread()).decode()
        if response.status_code != 200:
            return f"refused with {response.status_code}: {text[:200]}"
    if '"error"' in text:
        return "error event"
    return "whole" if text.endswith("data: [DONE]\n\n") else f"cut: {text[-100:]}"


async def under_load(stack: Serving, url: str, kind: str) -> Counter[str]:
    """How the requests of many clients end while a service of this kind is killed and started again."""
    victim, ready = processes(stack, kind)[0], rf"{kind}\S* is ready"
    chance = random.Random(victim.pid)
    ends: Counter[str] = Counter()
    is_over = False

    async def client_of() -> None:
        while not is_over:
            ends[await one(client, chance)] += 1

    limits = httpx.Limits(max_connections=NUM_STREAMS)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits, trust_env=False) as client:
        clients = [asyncio.create_task(client_of()) for _ in range(NUM_STREAMS)]
        await until(lambda: ends.total() >= NUM_STREAMS, 60)
        num_starts = len(re.findall(ready, stack.log))
        victim.kill()
        await asyncio.to_thread(stack.wait_for, ready, num_starts + 1, 60)
        await asyncio.sleep(AFTER_S)
        is_over = True
        await asyncio.gather(*clients)
    return ends


@pytest.mark.parametrize("kind", ["engine", "encoder", "frontend"])
async def test_one_of_two_is_killed(replicas: tuple[Serving, str], kind: str) -> None:
    stack, url = replicas
    ends = await under_load(stack, url, kind)
    print(kind, dict(ends))
    assert set(ends) <= {"whole", "error event"}, ends
    assert ends["whole"] > NUM_STREAMS
    # Streams that a killed frontend carried end with it, and no others. Those of an engine or encoder go on at the other one.
    assert ends["error event"] <= (NUM_STREAMS if kind == "frontend" else 0)
    assert len(processes(stack, kind)) == 2, "it is started again"
