"""The script that `helm test` runs in the gateway's image, which has Python and no more, against a gateway."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
from support.fakes.frontend import MODEL, FakeFrontend
from support.fakes.gateway import gateway_server

SCRIPT = Path(__file__).parents[3] / "helm" / "triptych" / "files" / "tests" / "chat.py"


async def run(place: tuple[str, int], *models: str, **environ: str) -> tuple[int | None, str, str]:
    """Exit code, output and errors of the script."""
    # -I: as in the pod, without this repository.
    command = [sys.executable, "-I", str(SCRIPT), f"http://{place[0]}:{place[1]}", *models]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=environ, stdout=pipe, stderr=pipe)
    out, errors = await process.communicate()
    return process.returncode, out.decode(), errors.decode()


async def test_every_model_is_asked() -> None:
    frontend = FakeFrontend()
    async with gateway_server(frontend, api_key="secret") as place:
        code, out, errors = await run(place, f"{MODEL.name}=auto", f"{MODEL.name}=embed", API_KEY="secret")
    assert (code, errors) == (0, "")
    assert out == f"{MODEL.name}: Hello\n{MODEL.name}: a vector of 2 numbers\n"
    assert len(frontend.requests) == len(frontend.pooling_requests) == 1


async def test_it_waits_until_the_gateway_is_ready() -> None:
    frontend = FakeFrontend()
    async with gateway_server(frontend) as place, httpx.AsyncClient(base_url=f"http://{place[0]}:{place[1]}") as client:
        await frontend.health.set_ready(False)
        async with asyncio.timeout(30):
            while (await client.get("/ready")).status_code != 503:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        running = asyncio.create_task(run(place, f"{MODEL.name}=generate"))
        await asyncio.sleep(0.5)
        assert not running.done()
        await frontend.health.set_ready(True)
        assert (await running)[0] == 0


async def test_what_is_wrong_is_said() -> None:
    async with gateway_server(FakeFrontend(), api_key="secret") as place:
        code, _, errors = await run(place, f"{MODEL.name}=auto", API_KEY="wrong")
        assert code == 1
        assert "/v1/models: 401" in errors
        code, _, errors = await run(place, "other=auto", API_KEY="secret")
        assert (code, errors.strip()) == (1, f"other is not among the models of the gateway: {MODEL.name}")


async def test_patience_ends() -> None:
    code, _, errors = await run(("127.0.0.1", 9), "a=auto", PATIENCE_S="0.1")
    assert code == 1
    assert "Connection refused" in errors
