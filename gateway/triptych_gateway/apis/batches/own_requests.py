"""Requests that the gateway makes to itself: through all of its middleware, without a socket."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message
from triptych_common.rpc.interceptors import REQUEST_ID_KEY

from triptych_gateway.access.key_ring import Key

#: What a batch adds to the priority of its key, so that its requests run behind all others. Lower runs first.
BATCH_PRIORITY = 1000
_MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True)
class OwnAnswer:
    """The answer to a request."""

    status: int
    request_id: str
    #: The delay that the answer asks for, in seconds.
    retry_after_s: float
    body: bytes


def behind_others(key: Key) -> Key:
    """The key as a batch uses it."""
    return replace(key, priority=min((key.priority or 0) + BATCH_PRIORITY, _MAX_PRIORITY))


async def post(app: ASGIApp, key: Key, path: str, body: bytes) -> OwnAnswer:
    """The answer to a POST of JSON. Rates, metrics, logs and traces count it as any other request.

    Args:
        app: the whole application.
        key: whose models, rates and priority the request has.
    """
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        # Whoever waits for the answer does not go away. To cancel a request is to cancel its task.
        return await asyncio.get_running_loop().create_future()

    status, headers, content = 500, Headers(), bytearray()

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], Headers(raw=message["headers"])
        else:
            content.extend(message.get("body", b""))

    await app(
        {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
            "client": None,
            "server": None,
            "state": {"own_key": key},
        },
        receive,
        send,
    )
    retry_after = headers.get("retry-after", "")
    retry_after_s = float(retry_after) if retry_after.isdecimal() else 0.0
    return OwnAnswer(status, headers.get(REQUEST_ID_KEY, ""), retry_after_s, bytes(content))
