"""Many large pictures at once through a real gateway and frontend: memory is bounded, and texts beside them are not held up."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import support.builders.media_files as media
from support.fakes.engine import says
from support.fakes.media_engine import FakeMediaEngine
from support.grpc_server import serving
from support.waiting import until
from triptych_cli.stack.ports import free_port
from triptych_common.model.store import model_info, served_name

pytestmark = pytest.mark.model
MIB = 1 << 20
_PROCESSES = Path(__file__).parents[2] / "support" / "processes"
_LOAD, _ENCODER = str(_PROCESSES / "upload_load.py"), str(_PROCESSES / "fake_encoder.py")
#: What a gateway takes without any body, and what is not freed to the system at once.
_BASE_BYTES = 220 * MIB


@dataclass
class Stack:
    """A gateway and a frontend as processes, in front of a fake encoder, which is a process, and a fake engine in this one."""

    client: httpx.AsyncClient
    address: tuple[str, int]
    model: str
    engine: FakeMediaEngine
    gateway: subprocess.Popen[bytes]

    async def first_token_s(self) -> float:
        """How long a text takes to its first event."""
        body = {"model": self.model, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        start_s = time.perf_counter()
        async with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for _ in response.aiter_lines():
                return time.perf_counter() - start_s
        raise AssertionError("no event")

    async def cancel_s(self) -> float:
        """How long it takes until the engine is told that a client has gone."""
        body = {"model": self.model, "stream": True, "messages": [{"role": "user", "content": "for ever"}]}
        num_before = len(self.engine.aborted)
        async with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for _ in response.aiter_lines():
                break
            start_s = time.perf_counter()
        await until(lambda: len(self.engine.aborted) > num_before, 30)
        return time.perf_counter() - start_s

    def peak_bytes(self) -> int:
        """Most memory that the gateway had so far."""
        status = Path(f"/proc/{self.gateway.pid}/status").read_text()
        return int(re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[0]) << 10


@asynccontextmanager
async def a_stack(max_live_body_bytes: int) -> AsyncIterator[Stack]:
    path = media.checkpoint("llava_siglip")
    info = model_info(path, path.name)
    # Texts go on until their client leaves; requests with pictures end.
    script = says([20, 21, 22])
    engine = FakeMediaEngine(info, lambda request: script(request)[: 1 if not request.media else 3])
    async with AsyncExitStack() as stack:
        encoder = await asyncio.create_subprocess_exec(sys.executable, _ENCODER, str(path), stdout=subprocess.PIPE)
        stack.push_async_callback(encoder.wait)
        stack.callback(encoder.kill)
        assert encoder.stdout is not None
        encoder_address = (await asyncio.wait_for(encoder.stdout.readline(), 60)).decode().strip()
        engine.encoder_addresses = (encoder_address,)
        engine_address = await stack.enter_async_context(serving(engine.register))
        frontend_port, gateway_port = free_port("127.0.0.1"), free_port("127.0.0.1")
        frontend = [
            "triptych_frontend",
            "--model",
            str(path),
            "--port",
            str(frontend_port),
            "--control-port",
            "0",
            "--log-level",
            "WARNING",
        ]
        frontend += ["--engine-addresses", engine_address, "--encoder-addresses", encoder_address]
        gateway = [
            "triptych_gateway",
            "--port",
            str(gateway_port),
            "--grpc-port",
            "0",
            "--frontend-addresses",
            f"127.0.0.1:{frontend_port}",
        ]
        gateway += ["--max-live-body-bytes", str(max_live_body_bytes), "--body-wait-s", "300", "--no-access-log"]
        processes = []
        for command in (frontend, gateway):
            process = subprocess.Popen([sys.executable, "-m", *command])  # noqa: ASYNC220 - it returns at once
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway_port}", timeout=300))
        async with asyncio.timeout(60):
            while True:
                try:
                    if (await client.get("/ready")).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.1)
        yield Stack(client, ("127.0.0.1", gateway_port), served_name(str(path)), engine, processes[1])


async def measured(stack: Stack, until_done: asyncio.Future[object] | None, num_probes: int) -> tuple[list[float], list[float]]:
    """Times of texts and of cancellations; until something is done, or so many."""
    first_tokens, cancels = [], []
    while until_done is None or not until_done.done():
        first_tokens.append(await stack.first_token_s())
        cancels.append(await stack.cancel_s())
        if until_done is None and len(cancels) == num_probes:
            break
        await asyncio.sleep(0.05)
    return first_tokens, cancels


async def flood(stack: Stack, num_streams: int, num_bytes: int) -> dict[str, int]:
    host, port = stack.address
    process = await asyncio.create_subprocess_exec(
        sys.executable, _LOAD, host, str(port), stack.model, str(num_streams), str(num_bytes), stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    ends: dict[str, int] = json.loads(output)
    return ends


@pytest.mark.parametrize(
    ("num_streams", "num_mib", "limit_mib"),
    [pytest.param(24, 4, 64, marks=pytest.mark.long), pytest.param(512, 8, 512, marks=pytest.mark.slow)],
)
async def test_large_pictures_wait_at_the_door(num_streams: int, num_mib: int, limit_mib: int) -> None:
    async with a_stack(limit_mib * MIB) as stack:
        await measured(stack, None, 5)
        quiet = await measured(stack, None, 20)
        start_s = time.perf_counter()
        flooding = asyncio.ensure_future(flood(stack, num_streams, num_mib * MIB))
        beside = await measured(stack, flooding, 0)
        elapsed_s, peak = time.perf_counter() - start_s, stack.peak_bytes()
        assert flooding.result() == {"whole": num_streams}
        report = {
            "seconds": round(elapsed_s, 1),
            "gateway_peak_mib": peak // MIB,
            "first_token_ms": [round(1e3 * statistics.median(times), 2) for times in (quiet[0], beside[0])],
            "cancel_ms": [round(1e3 * statistics.median(times), 2) for times in (quiet[1], beside[1])],
            "probes": len(beside[0]),
        }
        print(json.dumps(report))
        assert peak <= _BASE_BYTES + limit_mib * MIB, report
