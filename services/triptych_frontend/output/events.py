"""Events that the output chain's stages pass to each other, and finally to the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(slots=True)
class Text:
    """A piece of the answer's text."""

    text: str
    #: Output tokens up to the end of this text.
    num_tokens: int


@dataclass(slots=True)
class Stopped:
    """A stop string was found. Nothing comes after it."""

    stop_string: str


Event: TypeAlias = Text | Stopped
