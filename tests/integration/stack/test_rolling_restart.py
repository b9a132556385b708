"""Two services of each kind are restarted in turn by SIGTERM under load: no stream is lost, broken or refused."""

from __future__ import annotations

import asyncio
import base64
import io
import random
from collections import Counter
from pathlib import Path

import aiohttp
import pytest
from PIL import Image
from support.processes.suite import ServiceProcess, Suite, running_suite
from support.waiting import until
from triptych_common.model.store import resolve_model
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.model]
#: Grace time of each service, in seconds: longer than the streams that it carries take on two busy cores.
GRACE_S = 120.0
#: Time between the end of new requests to a gateway and its SIGTERM, in seconds, like a `preStop` hook.
PRE_STOP_S = 1.0
MAX_TOKENS = 12


class Gateways:
    """What a load balancer does: sends each request to a gateway in rotation."""

    def __init__(self, services: list[ServiceProcess]) -> None:
        self._services = services
        self._resting: set[ServiceProcess] = set()
        self._next = 0

    def take(self) -> str:
        """The URL of the next gateway."""
        self._next += 1
        chosen = [service for service in self._services if service not in self._resting]
        return f"http://{chosen[self._next % len(chosen)].address}"

    def rest(self, service: ServiceProcess) -> None:
        self._resting.add(service)

    def resume(self, service: ServiceProcess) -> None:
        self._resting.discard(service)


def picture(chance: random.Random) -> str:
    """One that no encoder has seen."""
    file = io.BytesIO()
    Image.frombytes("RGB", (24, 24), chance.randbytes(24 * 24 * 3)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


async def one(client: aiohttp.ClientSession, gateways: Gateways, chance: random.Random) -> str:
    """One streamed request with a picture; how it ended."""
    content = [{"type": "image_url", "image_url": {"url": picture(chance)}}, {"type": "text", "text": "Tell me something."}]
    body = {
        "model": DEFAULT_MODEL,
        "stream": True,
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": content}],
    }
    try:
        async with client.post(f"{gateways.take()}/v1/chat/completions", json=body) as response:
            text = (await response.read()).decode()
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"lost: {error!r}"
    if response.status != 200:
        return f"refused with {response.status}: {text[:300]}"
    if '"error"' in text:
        return f"broken: {text[-500:]}"
    if not text.endswith("data: [DONE]\n\n"):
        return f"broken: cut after {text[-100:]!r}"
    return "whole"


async def restart_each(suite: Suite, gateways: Gateways, num_of_each: int) -> None:
    """Restart services one after the other, engines first.

    Args:
        num_of_each: of each kind.
    """
    for kind in ("engine", "encoder", "frontend", "gateway"):
        for service in suite.services[kind][:num_of_each]:
            if kind == "gateway":
                gateways.rest(service)
                await asyncio.sleep(PRE_STOP_S)
            assert await service.stop(GRACE_S + 20) == 0, service.log.read_text()[-3000:]
            service.start()
            await service.until_ready()
            gateways.resume(service)


async def restarted_under_load(directory: Path, num_streams: int, num_of_each: int, num_rounds: int) -> Counter[str]:
    """How the streams of this many clients end while services are restarted, this many times."""
    resolve_model(DEFAULT_MODEL)
    grace = ["--shutdown-grace-s", str(GRACE_S)]
    args = {
        "engine": [*grace, "--kv-cache-memory", "256M", "--num-threads", "1"],
        "encoder": [*grace, "--num-threads", "1"],
        "frontend": grace,
        "gateway": grace,
    }
    ends: Counter[str] = Counter()
    is_over = False

    async def client_of(number: int) -> None:
        chance = random.Random(number)
        while not is_over:
            ends[await one(client, gateways, chance)] += 1

    counts = dict.fromkeys(("encoder", "engine", "frontend", "gateway"), 2)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=GRACE_S)
    async with (
        running_suite(counts, args, directory) as suite,
        aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client,
    ):
        gateways = Gateways(suite.services["gateway"])
        clients = [asyncio.create_task(client_of(number)) for number in range(num_streams)]
        await until(lambda: ends.total() >= num_streams, GRACE_S)
        for _ in range(num_rounds):
            await restart_each(suite, gateways, num_of_each)
            print(dict(ends))
        is_over = True
        await asyncio.gather(*clients)
    return ends


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_rolling_restart_breaks_no_stream(tmp_path: Path) -> None:
    ends = await restarted_under_load(tmp_path, num_streams=6, num_of_each=1, num_rounds=1)
    assert set(ends) == {"whole"}, ends
    assert ends["whole"] > 12


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_three_rolling_restarts_under_200_streams(tmp_path: Path) -> None:
    ends = await restarted_under_load(tmp_path, num_streams=200, num_of_each=2, num_rounds=3)
    assert set(ends) == {"whole"}, ends
    assert ends["whole"] > 600
