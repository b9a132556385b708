"""One request over HTTP, sent again as long as that can help."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from triptych_common.batch.retries import Retries

from triptych_cli.errors import CommandError

#: How often a request is sent to a server that is away: at least four minutes of pauses.
_MAX_AWAY = 30
#: Time for the answer to a GET, which computes nothing, in seconds.
_GET_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Answer:
    """What the server said in the end."""

    status: int
    request_id: str
    body: Any

    def num_tokens(self, kind: str) -> int:
        """prompt or completion tokens, as the answer counts them."""
        usage = self.body.get("usage") if isinstance(self.body, dict) else None
        other = {"prompt": "input", "completion": "output"}[kind]
        return int((usage or {}).get(f"{kind}_tokens") or (usage or {}).get(f"{other}_tokens") or 0)


class Client:
    """Sends requests to a gateway. All methods belong to one event loop.

    Args:
        url: of the gateway, without a path.
        check: called before a request is sent again; raises an error if that is pointless.
        report: called with a message when the gateway is away for the first time.
    """

    def __init__(self, url: str, api_key: str | None, check: Callable[[], None], report: Callable[[str], None]) -> None:
        self._url, self._check, self._report = url, check, report
        self._is_reported = False
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str) -> Answer:
        """The answer to a GET. Raises CommandError as `post` does."""
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: bytes) -> Answer:
        """The answer to a POST of JSON.

        Raises:
            CommandError: the gateway is away for too long, or refuses the key; or what answers is no gateway.
        """
        return await self._ask("POST", path, body)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def _ask(self, method: str, path: str, body: bytes | None) -> Answer:
        retries = Retries(_MAX_AWAY)
        while True:
            reason, retry_after_s, answer = "", 0.0, None
            try:
                answer, retry_after_s = await self._send(method, path, body)
                reason = f"status {answer.status}"
            except (aiohttp.ClientError, OSError) as error:
                reason = str(error) or type(error).__name__
            if not retries.again(None if answer is None else answer.status):
                if answer is not None:
                    return answer
                raise CommandError(f"{self._url} does not answer: {reason}; start the same command again to go on")
            self._check()
            if retries.num_away == 1 and not self._is_reported:
                self._is_reported = True
                self._report(f"{self._url} does not answer ({reason}); trying again")
            await asyncio.sleep(retries.pause_s(retry_after_s))

    async def _send(self, method: str, path: str, body: bytes | None) -> tuple[Answer, float]:
        if self._session is None:
            # The window bounds the connections. An answer takes as long as it takes.
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=10))
        headers = {**self._headers, "Content-Type": "application/json"}
        # A redirected POST would become a GET.
        sent = self._session.request(method, self._url + path, data=body, headers=headers, allow_redirects=False)
        async with asyncio.timeout(_GET_TIMEOUT_S if body is None else None), sent as response:
            content = await response.read()
            answer = Answer(response.status, response.headers.get("x-request-id", ""), self._parse(path, response, content))
            return answer, _seconds(response.headers.get("Retry-After"))

    def _parse(self, path: str, response: aiohttp.ClientResponse, content: bytes) -> Any:
        """The body of an answer. Raises CommandError if it is none to any request."""
        again = "start the same command again to go on"
        if 300 <= response.status < 400:
            location = response.headers.get("Location", "elsewhere")
            raise CommandError(f"{self._url}{path} redirects to {location}; give that address as --url")
        if response.status == 401:
            source = "give it with --api-key-file or in TRIPTYCH_API_KEY"
            raise CommandError(f"{self._url} answers with status 401: the key is missing or wrong; {source}, and {again}")
        try:
            return json.loads(content)
        except ValueError as error:
            if response.status < 300:
                raise CommandError(f"{self._url}{path} is not answered with JSON; --url must be that of a gateway") from error
            # A proxy answers as it likes.
            return content.decode(errors="replace")


def _seconds(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
