"""kill -9 of an encoder's process under load: text goes on, media get an answer or a clean error, and its successor serves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import support.builders.media_files as media
from grpc.aio import AioRpcError
from support.builders.frontend import Bench, frontend_bench, joined
from support.drivers.media_frontend import request
from support.fakes.engine import says
from support.fakes.media_engine import FakeMediaEngine
from support.waiting import until
from triptych.errors import QueueFullError, ServiceUnavailableError
from triptych.status import from_rpc_error
from triptych_cli.stack.ports import free_port

pytestmark = [pytest.mark.model, pytest.mark.timeout(240), pytest.mark.long]
_START_TIMEOUT_S = 90.0


@contextlib.asynccontextmanager
async def encoder_process(model: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    command = ["-m", "triptych_encoder", "--model", model, "--port", str(port), "--control-port", "0", "--log-level", "WARNING"]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ask(bench: Bench, number: int) -> str:
    """What became of a request: answered, or the reason of its error. Every second one has a picture of its own."""
    parts = ["Hi"] if number % 2 else [media.image(20 + number % 97, 20 + number // 97), "What is this?"]
    try:
        responses = [response async for response in bench.chat(request(*parts))]
    except AioRpcError as failed:
        error = from_rpc_error(failed)
        assert isinstance(error, (ServiceUnavailableError, QueueFullError)), error
        assert number % 2 == 0, f"text was refused: {error}"
        return error.reason
    assert joined(responses)
    return "answered"


async def test_mixed_requests_survive_killed_encoders() -> None:
    path = str(media.checkpoint("llava_siglip"))
    port = free_port("127.0.0.1")
    settings = {"encoder_addresses": (f"127.0.0.1:{port}",)}
    async with frontend_bench(
        says([20, 21]), model=media.checkpoint("llava_siglip"), engine_class=FakeMediaEngine, **settings
    ) as bench:
        encoders, counts = bench.frontend._encoders, bench.frontend._encoder_client.counts

        async def outcomes_of(numbers: range) -> Counter[str]:
            return Counter(await asyncio.gather(*(ask(bench, number) for number in numbers)))

        asked = range(0)
        # In the middle of encoding; or with embeddings that are there, and not all of them fetched.
        for wait_for in ("bytes_sent", "miss"):
            async with encoder_process(path, port) as process:
                await until(lambda: bool(encoders.ready), _START_TIMEOUT_S)
                after = await outcomes_of(asked)
                assert after["answered"] == len(asked), after
                asked, enough = range(asked.stop, asked.stop + 250), counts[wait_for] + 20
                running = asyncio.create_task(outcomes_of(asked))
                await until(lambda: counts[wait_for] >= enough)  # noqa: B023 - awaited here
                process.send_signal(signal.SIGKILL)
                outcomes = await running
            assert outcomes.total() == 250
            assert outcomes["answered"] >= 125
        async with encoder_process(path, port):
            await until(lambda: bool(encoders.ready), _START_TIMEOUT_S)
            assert await outcomes_of(asked) == {"answered": 250}
        assert not bench.frontend.num_live_requests
        await until(lambda: not bench.engine.live)
