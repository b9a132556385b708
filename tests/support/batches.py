"""Batches for tests: their lines, their files, and their end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import httpx
import openai
from openai.types import Batch

from support.fakes.frontend import MODEL, Script, says

CHAT_URL = "/v1/chat/completions"
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


class Answers:
    """A script of a fake frontend: the first requests are answered, and the others wait until it is opened."""

    def __init__(self, num_answered: int) -> None:
        self.num_left = num_answered
        self._gate = asyncio.Semaphore(0)

    def __call__(self, request: object) -> Script:
        self.num_left -= 1
        return says("yes") if self.num_left >= 0 else Script(says("yes").choices, gate=self._gate)

    def open(self) -> None:
        """Answer all requests."""
        self.num_left = 1 << 40
        for _ in range(1000):
            self._gate.release()


def chat_line(custom_id: str, text: str = "Hi", **fields: Any) -> dict[str, Any]:
    """A line with a chat."""
    body = {"model": MODEL.name, "messages": [{"role": "user", "content": text}]}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT_URL, "body": body} | fields


def jsonl(lines: Iterable[dict[str, Any]]) -> bytes:
    """The file of lines."""
    return "\n".join(map(json.dumps, lines)).encode()


async def start_batch(client: openai.AsyncOpenAI, content: bytes, endpoint: Any = CHAT_URL, **fields: Any) -> Batch:
    """Upload a file, and make a batch of it."""
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields)


async def ended_batch(client: openai.AsyncOpenAI, batch: Batch, timeout_s: float = 20.0) -> Batch:
    """The batch, once it has ended."""
    async with asyncio.timeout(timeout_s):
        while batch.status not in ENDED:
            await asyncio.sleep(0.02)
            batch = await client.batches.retrieve(batch.id)
    return batch


async def output_of(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """custom_id -> line of a file of output. No line is there twice."""
    if file_id is None:
        return {}
    entries = [json.loads(line) for line in (await client.files.content(file_id)).text.splitlines()]
    found = {entry["custom_id"]: entry for entry in entries}
    assert len(found) == len(entries)
    return found


def upload(content: bytes, purpose: str = "user_data", name: str = "a.txt", **fields: str) -> dict[str, Any]:
    """The arguments of httpx for POST /v1/files."""
    return {"files": {"file": (name, content)}, "data": {"purpose": purpose, **fields}}


def error_of(answer: httpx.Response, status: int) -> str:
    """The message of an error with this status."""
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])
