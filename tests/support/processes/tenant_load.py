"""One tenant's load on everything finite, until standard input closes: `python tenant_load.py URL KEY MODEL FACTOR`.

With the factor 1 it holds about its share of everything in the stack of `test_tenant_flood`, with a larger one so many times as
much. It is a separate process, so that the load does not disturb the measuring process. Writes one line of JSON at its end:
outcome -> count.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from aiohttp import web

from support.processes.upload_load import bitmap

#: How many of each the share is.
CHATS, RUNS, STORED, PICTURES, FETCHES, SOCKETS, SLOW_BODIES = 5, 2, 1, 1, 16, 10, 3
#: A client pauses so long after a refusal, in seconds.
_PAUSE_S = 0.5
_PROMPT = "Tell me a long story about the number {}, the sea, an old lighthouse and those who keep it through a winter. "


class Load:
    """The clients of one tenant."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str, model: str, slow_url: str) -> None:
        self._session, self._url, self._key, self._model, self._slow_url = session, url, key, model, slow_url
        self.outcomes: Counter[str] = Counter()
        self._numbers = itertools.count()

    def clients(self, factor: int) -> list[Callable[[], Awaitable[None]]]:
        """All clients. Each does one thing, and is called again when that has ended."""
        kinds = ((self._chat, CHATS), (self._run, RUNS), (self._store, STORED), (self._picture, PICTURES))
        others = ((self._fetch, FETCHES), (self._socket, SOCKETS), (self._slow_body, SLOW_BODIES))
        return [client for client, number in (*kinds, *others) for _ in range(number * factor)]

    def _messages(self, *parts: dict[str, Any]) -> list[dict[str, Any]]:
        text = {"type": "text", "text": _PROMPT.format(next(self._numbers))}
        return [{"role": "user", "content": [*parts, text]}]

    async def _post(self, name: str, path: str, **fields: Any) -> Any:
        async with self._session.post(path, json={"model": self._model, **fields}) as response:
            content = await response.read()
            self.outcomes[f"{name} {response.status}"] += 1
            if response.status != 200:
                await asyncio.sleep(_PAUSE_S)
                return None
            return content

    async def _chat(self) -> None:
        await self._post(
            "chat", "/v1/chat/completions", messages=self._messages(), max_tokens=48, ignore_eos=True, stream=True, store=False
        )

    async def _run(self) -> None:
        made = await self._post(
            "background", "/v1/responses", input=_PROMPT.format(next(self._numbers)), background=True, max_output_tokens=48
        )
        while made is not None:
            await asyncio.sleep(0.2)
            async with self._session.get(f"/v1/responses/{json.loads(made)['id']}") as response:
                # Its own oldest responses are dropped, so that it may not find it.
                if response.status != 200 or (await response.json())["status"] not in ("queued", "in_progress"):
                    return

    async def _store(self) -> None:
        text = {"type": "input_text", "text": _PROMPT.format(next(self._numbers)) * 8}
        await self._post("store", "/v1/responses", input=[{"role": "user", "content": [text]}], store=True, max_output_tokens=1)

    async def _picture(self) -> None:
        number = next(self._numbers)
        file = bitmap(300_000)[:-8] + number.to_bytes(8, "big")
        url = f"data:image/bmp;base64,{base64.b64encode(file).decode()}"
        picture = {"type": "image_url", "image_url": {"url": url}, "uuid": f"picture {number}"}
        await self._post("picture", "/v1/chat/completions", messages=self._messages(picture), max_tokens=1)
        await asyncio.sleep(1)

    async def _fetch(self) -> None:
        picture = {"type": "image_url", "image_url": {"url": f"{self._slow_url}/{next(self._numbers)}"}}
        await self._post("fetch", "/v1/chat/completions", messages=self._messages(picture), max_tokens=1)

    async def _socket(self) -> None:
        try:
            async with self._session.ws_connect("/v1/responses") as connection:
                self.outcomes["socket 101"] += 1
                await connection.receive(timeout=60)
        except aiohttp.WSServerHandshakeError as error:
            self.outcomes[f"socket {error.status}"] += 1
        except TimeoutError:
            return
        await asyncio.sleep(_PAUSE_S)

    async def _slow_body(self) -> None:
        """A body of 8 MB of which a byte comes now and then."""
        host, port = self._url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            lines = (
                "POST /v1/chat/completions HTTP/1.1",
                "host: x",
                f"authorization: Bearer {self._key}",
                "content-length: 8000000",
            )
            writer.write("\r\n".join([*lines, "", ""]).encode())
            for _ in range(30):
                writer.write(b" ")
                await writer.drain()
                async with asyncio.timeout(1):
                    status = (await reader.readline()).split()
                    self.outcomes[f"slow body {status[1].decode() if status else 'closed'}"] += 1
                    break
        except (TimeoutError, OSError):
            self.outcomes["slow body kept"] += 1
        finally:
            writer.close()
        await asyncio.sleep(_PAUSE_S)


async def _never(request: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.Response(status=404)


async def _again(load: Load, client: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await client()
        except (aiohttp.ClientError, OSError) as error:
            load.outcomes[type(error).__name__] += 1
            await asyncio.sleep(_PAUSE_S)


async def main(url: str, key: str, model: str, factor: int) -> None:
    app = web.Application()
    app.router.add_get("/{number}", _never)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    headers, limits = {"authorization": f"Bearer {key}"}, aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, headers=headers, connector=limits, timeout=aiohttp.ClientTimeout(total=None)) as session:
        load = Load(session, url, key, model, f"http://127.0.0.1:{port}")
        tasks = [asyncio.create_task(_again(load, client)) for client in load.clients(factor)]
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await runner.cleanup()
    print(json.dumps(load.outcomes), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
