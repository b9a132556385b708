"""Conversations of several turns, of which parts begin alike: what routers that know prefixes live on."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from triptych_cli.load.requests import Prompts, Target

#: Words of what two conversations of a kind have in common, of a conversation's first message, and of each later one.
_SHARED_WORDS, _DOCUMENT_WORDS, _TURN_WORDS = 300, 400, 40


@dataclass(frozen=True)
class Script:
    """What one user says, turn by turn.

    Attributes:
        kind: chat (a document of its own), agent (tools in a long system prompt in common, and their results) or shared (a system
            prompt in common).
    """

    kind: str
    system: str
    turns: Sequence[str]


@dataclass
class Outcome:
    """What the users saw."""

    ttft_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    failures: list[str] = field(default_factory=list)


def scripts(count: int, num_turns: int, seed: int) -> list[Script]:
    """So many users, a third of each kind, in random order."""
    words = Prompts(_TURN_WORDS, seed)
    long = Prompts(_DOCUMENT_WORDS, seed + 1)
    common = Prompts(_SHARED_WORDS, seed + 2).take(3)
    # As templates show them. A simulated engine follows no grammar, so that a request with `tools` would be refused.
    tools = "\n".join(json.dumps(_tool(name)) for name in ("search", "read_file", "run"))
    made = []
    for number in range(count):
        turns = words.take(num_turns)
        kind = ("chat", "agent", "shared")[number % 3]
        if kind == "chat":
            made.append(Script(kind, "", [long.take(1)[0], *turns[1:]]))
        elif kind == "agent":
            made.append(Script(kind, f"{common[0]}\n{tools}", [turns[0], *(f"Result: {turn}" for turn in turns[1:])]))
        else:
            made.append(Script(kind, common[1 + number % 2], turns))
    random.Random(seed).shuffle(made)
    return made


def _tool(name: str) -> dict[str, Any]:
    properties = {"argument": {"type": "string", "description": f"what to {name}"}}
    parameters = {"type": "object", "properties": properties, "required": ["argument"]}
    return {"type": "function", "function": {"name": name, "description": f"Use it to {name}.", "parameters": parameters}}


async def converse(target: Target, users: Sequence[Script], concurrency: int, max_tokens: int, think_s: float) -> Outcome:
    """Let the users talk, so many at a time. As one ends, the next begins.

    Args:
        think_s: mean time from an answer to the user's next message, in seconds.
    """
    outcome, waiting, pauses = Outcome(), iter(users), random.Random(0)
    async with httpx.AsyncClient(base_url=target.url, timeout=600, limits=httpx.Limits(), trust_env=False) as client:

        async def work() -> None:
            for user in waiting:
                messages = [{"role": "system", "content": user.system}] if user.system else []
                for turn in user.turns:
                    messages.append({"role": "user", "content": turn})
                    try:
                        answer = await _turn(client, target.model, messages, max_tokens, outcome)
                    except (httpx.HTTPError, ValueError, KeyError) as error:
                        outcome.failures.append(f"{type(error).__name__}: {error}"[:200])
                        break
                    messages.append({"role": "assistant", "content": answer})
                    await asyncio.sleep(pauses.expovariate(1 / think_s))

        await asyncio.gather(*(work() for _ in range(concurrency)))
    return outcome


async def _turn(client: httpx.AsyncClient, model: str, messages: list[dict[str, str]], max_tokens: int, outcome: Outcome) -> str:
    """One answer, streamed. Raises httpx.HTTPError, or ValueError when it is not whole."""
    body: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    text, is_done, sent_s = "", False, time.perf_counter()
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.is_error:
            raise ValueError(f"status {response.status_code}: {(await response.aread())[:150]!r}")
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            if (data := line.removeprefix("data: ")) == "[DONE]":
                is_done = True
                break
            event = json.loads(data)
            if "error" in event:
                raise ValueError(f"error event: {event['error']}")
            piece = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if piece and not text:
                outcome.ttft_s.append(time.perf_counter() - sent_s)
            text += piece
            outcome.num_tokens += (event.get("usage") or {}).get("completion_tokens", 0)
    if not is_done:
        raise ValueError("the stream ended without [DONE]")
    return text
