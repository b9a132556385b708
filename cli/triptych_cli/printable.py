"""Text of others for a terminal."""

from __future__ import annotations

#: A terminal obeys control characters: they change its title, its clipboard, what it has shown. Tabs and ends of lines stay.
_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in range(160) if not chr(code).isprintable() and chr(code) not in "\t\n"}


def printable(text: str) -> str:
    """The text with a mark for each control character."""
    return text.translate(_CONTROLS)
