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
#: Before the picture: nothing that was computed behind another beginning can be used again.
FIRST_TEXT = "Here is a picture."


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


def about(picture: Picture, question: str, first_text: str = "") -> list[dict[str, Any]]:
    """The content of a message."""
    content: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": picture.url}},
        {"type": "text", "text": question},
    ]
    return [{"type": "text", "text": first_text}, *content] if first_text else content


def chat(target: Target, content: str | list[dict[str, Any]], max_tokens: int) -> dict[str, Any]:
    """A streamed chat of one message, greedy, whose answer has exactly so many tokens."""
    return {
        "model": target.model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
