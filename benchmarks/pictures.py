"""Pictures that no server has seen, and the chats that ask about them."""

from __future__ import annotations

import base64
import io
import os
from dataclasses import dataclass
from typing import Any

from load import Target
from PIL import Image

#: Pixels of noise are this large, in pixels of the picture: a JPEG of it is about as large as a photograph's.
_GRAIN = 8
_JPEG_QUALITY = 85
QUESTION = "What is in this image?"
OTHER_QUESTION = "Which colours do you see, and where are they?"
#: A turn before the picture's: nothing that was computed behind another beginning can be used again. Text of the same message would
#: not do: there are templates that put its pictures first.
FIRST_TURN = ("I have a picture for you.", "Show me.")


@dataclass(frozen=True)
class Picture:
    """A JPEG file."""

    file: bytes

    @property
    def url(self) -> str:
        """As OpenAI's API takes it."""
        return "data:image/jpeg;base64," + base64.b64encode(self.file).decode()


def new_picture(edge: int) -> Picture:
    """Smoothed random noise, so many pixels wide and high."""
    cells = max(1, edge // _GRAIN)
    noise = Image.frombytes("RGB", (cells, cells), os.urandom(3 * cells * cells))
    file = io.BytesIO()
    noise.resize((edge, edge)).save(file, "JPEG", quality=_JPEG_QUALITY)
    return Picture(file.getvalue())


def about(picture: Picture, question: str) -> list[dict[str, Any]]:
    """The content of a message."""
    return [{"type": "image_url", "image_url": {"url": picture.url}}, {"type": "text", "text": question}]


def chat(
    target: Target, content: str | list[dict[str, Any]], max_tokens: int, first_turn: tuple[str, str] | None = None
) -> dict[str, Any]:
    """A streamed chat of one message, greedy, whose answer has exactly so many tokens.

    Args:
        first_turn: what user and model said before.
    """
    turn = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), first_turn or (), strict=False)]
    return {
        "model": target.model,
        "messages": [*turn, {"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
