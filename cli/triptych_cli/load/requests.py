"""Requests that no server has seen before: prompts, and the bodies that ask about them."""

from __future__ import annotations

import base64
import random
import ssl
import string
from dataclasses import dataclass, field
from typing import Any

_WORDS = (
    "sea", "river", "mountain", "bird", "engine", "letter", "garden", "winter", "copper", "violin",
    "harbour", "planet", "bread", "lantern", "mirror", "forest", "market", "signal", "thunder", "paper",
    "castle", "orange", "window", "bridge", "island", "candle",
)  # fmt: skip
_TAG_LENGTH = 6


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible server, and the name of the model there.

    Attributes:
        url: without /v1.
        tls: for https.
    """

    name: str
    url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True)
class Request:
    """A route of OpenAI's interface, and a body that lacks the model's name."""

    path: str
    body: dict[str, Any]


def completion(prompt: str, max_tokens: int, *, ignore_eos: bool = True) -> Request:
    """A streamed completion, greedy, of exactly so many tokens; without `ignore_eos` (not OpenAI's) of at most so many."""
    return Request("/v1/completions", {"prompt": prompt, **_options(max_tokens, ignore_eos)})


def chat(
    text: str,
    max_tokens: int,
    pictures: list[bytes] | None = None,
    first_turn: tuple[str, str] | None = None,
    *,
    ignore_eos: bool = True,
) -> Request:
    """The same as a chat about some pictures, JPEG files; `first_turn` is what user and model said before."""
    turn = [{"role": role, "content": said} for role, said in zip(("user", "assistant"), first_turn or (), strict=False)]
    urls = ["data:image/jpeg;base64," + base64.b64encode(picture).decode() for picture in pictures or ()]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [*parts, {"type": "text", "text": text}] if parts else text
    messages = [*turn, {"role": "user", "content": content}]
    return Request("/v1/chat/completions", {"messages": messages, **_options(max_tokens, ignore_eos)})


def _options(max_tokens: int, ignore_eos: bool) -> dict[str, Any]:
    options = {"max_tokens": max_tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    return options | {"ignore_eos": True} if ignore_eos else options


class Prompts:
    """Prompts of which no two begin alike, over the whole sitting: no prefix cache can help anybody."""

    def __init__(self, num_words: int, seed: int = 0) -> None:
        self._num_words = num_words
        self._random = random.Random(seed)
        self._tags: set[str] = set()

    def take(self, count: int) -> list[str]:
        """Prompts that were not given out before."""
        return [" ".join([self._new_tag(), *self._random.choices(_WORDS, k=self._num_words - 1)]) for _ in range(count)]

    def _new_tag(self) -> str:
        while (tag := "".join(self._random.choices(string.ascii_lowercase, k=_TAG_LENGTH))) in self._tags:
            pass
        self._tags.add(tag)
        return tag
