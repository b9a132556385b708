"""Texts of clients in spans and logs: short, and without API keys that are in them by mistake."""

from __future__ import annotations

import re

#: Pattern of a key's id, which is public.
KEY_ID = r"[a-z0-9]{8,12}"
_KEY = re.compile(rf"sk-triptych-({KEY_ID})-[A-Za-z0-9_-]+")
#: So much of a text is kept: spans wait in memory, and logs are stored.
_MAX_CHARS = 256


def redacted(text: str) -> str:
    """The text without keys."""
    return _KEY.sub(r"sk-triptych-\1-...", text) if "sk-triptych-" in text else text


def excerpt(text: str) -> str:
    """The beginning of a text, without keys."""
    return redacted(text[:_MAX_CHARS])
