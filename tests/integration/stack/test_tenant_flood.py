"""One tenant floods everything finite; the other is served as beside a tenant that stays within its share.

`TRIPTYCH_FLOOD_S` is the duration of each phase in seconds: 120 for a figure to state. The default is for development. The ratio
needs a machine on which nothing else runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import support.builders.media_files as media
from aiohttp import web
from support.keys import KeyStore
from support.processes import tenant_load
from support.stack import serving
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(900)]
_PHASE_S = float(os.environ.get("TRIPTYCH_FLOOD_S", "20"))
_FACTOR = 10
#: Limits so small that the flood reaches each of them.
_FLAGS = [
    "--gateway.max-background-responses=8",
    "--gateway.max-websockets=32",
    "--gateway.response-store-max-bytes=200k",
    "--engine.max-num-seqs=16",
    "--engine.max-waiting=32",
    "--frontend.max-live-requests=64",
    "--frontend.allow-private-media-addresses",
    "--frontend.max-media-aliases=64",
    "--encoder.max-queue=8",
]


class Quiet:
    """The tenant that is measured. It does one thing after the other."""

    def __init__(self, session: aiohttp.ClientSession, picture_url: str) -> None:
        self._session, self._picture_url = session, picture_url
        #: Times to the first token of chats without pictures, in seconds.
        self.ttft_s: list[float] = []
        self.refused: Counter[str] = Counter()
        self._stored: list[str] = []
        self._runs: list[str] = []
        self._number = 0

    async def work(self, duration_s: float) -> None:
        """Do everything until the time is over."""
        end_s = time.monotonic() + duration_s
        while time.monotonic() < end_s:
            self._number += 1
            await self._chat()
            if self._number % 8 == 1:
                await self._picture()
            if self._number % 16 == 2:
                await self._store()
            if self._number % 16 == 3 and len(self._runs) < 20:
                await self._run()
            if self._number % 16 == 4:
                await self._turn()
            await asyncio.sleep(0.1)

    async def lost(self) -> list[str]:
        """Responses that are not there, or did not complete."""
        lost = []
        for response_id in (*self._stored, *self._runs):
            async with self._session.get(f"/v1/responses/{response_id}") as response:
                found = await response.json()
                if response.status != 200 or found["status"] not in ("completed", "incomplete"):
                    lost.append(f"{response_id}: {response.status} {found}")
        return lost

    def _asked(self, *parts: dict[str, Any]) -> dict[str, Any]:
        text = {"type": "text", "text": f"What is the number {self._number} good for? Say it in one sentence, please."}
        messages = [{"role": "user", "content": [*parts, text]}]
        return {"model": DEFAULT_MODEL, "messages": messages, "max_tokens": 4, "ignore_eos": True}

    async def _chat(self) -> None:
        start_s = time.perf_counter()
        async with self._session.post("/v1/chat/completions", json=self._asked() | {"stream": True}) as response:
            if response.status != 200:
                self.refused[f"chat {response.status}: {await response.text()}"] += 1
                return
            await response.content.readuntil(b"\n\n")
            self.ttft_s.append(time.perf_counter() - start_s)
            rest = await response.read()
            if not rest.endswith(b"data: [DONE]\n\n"):
                self.refused[f"chat broke off: {rest[-200:]!r}"] += 1

    async def _post(self, name: str, path: str, body: dict[str, Any]) -> Any:
        async with self._session.post(path, json=body) as response:
            answer = await response.json()
            if response.status != 200:
                self.refused[f"{name} {response.status}: {answer}"] += 1
                return None
            return answer

    async def _picture(self) -> None:
        picture = {"type": "image_url", "image_url": {"url": f"{self._picture_url}/{self._number}"}, "uuid": "mine"}
        await self._post("picture", "/v1/chat/completions", self._asked(picture))
        # The name still means the picture.
        named = {"type": "image_url", "image_url": None, "uuid": "mine"}
        await self._post("named picture", "/v1/chat/completions", self._asked(named))

    async def _store(self) -> None:
        body = {"model": DEFAULT_MODEL, "input": "Remember this.", "store": True, "max_output_tokens": 2}
        if (answer := await self._post("store", "/v1/responses", body)) is not None:
            self._stored.append(answer["id"])

    async def _run(self) -> None:
        body = {"model": DEFAULT_MODEL, "input": "Do this later.", "background": True, "max_output_tokens": 2}
        if (answer := await self._post("background", "/v1/responses", body)) is not None:
            self._runs.append(answer["id"])

    async def _turn(self) -> None:
        try:
            async with self._session.ws_connect("/v1/responses") as connection:
                turn = {"type": "response.create", "model": DEFAULT_MODEL, "input": "Hi", "max_output_tokens": 2, "store": False}
                await connection.send_json(turn)
                while True:
                    event = await connection.receive_json(timeout=60)
                    if event["type"] in ("response.completed", "response.incomplete"):
                        return
                    if event["type"] in ("error", "response.failed"):
                        self.refused[f"turn: {event}"] += 1
                        return
        except aiohttp.WSServerHandshakeError as error:
            self.refused[f"socket {error.status}"] += 1


@asynccontextmanager
async def pictures() -> AsyncIterator[str]:
    """A server with a different picture at each address."""

    async def picture(request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        return web.Response(body=media.image(40 + number % 40, 30 + number // 40), content_type="image/png")

    app = web.Application()
    app.router.add_get("/{number}", picture)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def phase(url: str, keys: KeyStore, factor: int) -> tuple[Quiet, dict[str, int]]:
    """What the quiet tenant saw beside another one with so many times its share, and how the other's requests ended."""
    arguments = (url, keys.texts["other"], DEFAULT_MODEL, str(factor))
    pipe = asyncio.subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    load = await asyncio.create_subprocess_exec(
        sys.executable, tenant_load.__file__, *arguments, stdin=pipe, stdout=pipe, env=environment
    )
    try:
        headers = keys.headers("quiet")
        async with pictures() as picture_url, aiohttp.ClientSession(url, headers=headers) as session:
            quiet = Quiet(session, picture_url)
            await asyncio.sleep(3)
            await quiet.work(_PHASE_S)
            written, _ = await load.communicate(b"")
            async with asyncio.timeout(60):
                while lost := await quiet.lost():
                    if not all("queued" in one or "in_progress" in one for one in lost):
                        break
                    await asyncio.sleep(0.5)
            assert not lost
    finally:
        if load.returncode is None:
            load.kill()
            await load.wait()
    return quiet, json.loads(written)


def percentile(values: list[float], part: float) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[round(part * 100) - 1]


async def test_a_flood_does_not_delay_or_refuse_the_other_tenant(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.json")
    keys.add("quiet", tenant="quiet")
    keys.add("other", tenant="other")
    with serving(DEFAULT_MODEL, *_FLAGS, "--gateway.api-keys-file", str(keys.path)) as stack:
        url = await asyncio.to_thread(stack.wait_until_started)
        within, share = await phase(url, keys, 1)
        beside, flood = await phase(url, keys, _FACTOR)
    figures = {
        name: {f"p{round(100 * part)}": round(1e3 * percentile(one.ttft_s, part), 1) for part in (0.5, 0.9, 0.99)}
        | {"n": len(one.ttft_s)}
        for name, one in (("within its share", within), ("flood", beside))
    }
    print(
        json.dumps(
            {"time to first token in ms beside a tenant": figures, "its requests": {"within": share, "flood": flood}}, indent=1
        )
    )
    assert not within.refused + beside.refused
    assert any(name.endswith(" 429") for name in flood)
    # Each limit was reached.
    for name in ("background 429", "socket 429", "chat 429"):
        assert flood.get(name), f"the flood reached no limit of {name}: {flood}"
    assert figures["flood"]["p99"] <= 1.5 * figures["within its share"]["p99"]
