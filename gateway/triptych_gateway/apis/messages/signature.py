"""Signatures of thinking blocks. Clients send them back as they are.

Anthropic signs the thinking. Here the text itself is what counts, so a signature is only a mark. If the client asked not to see the
thinking, its signature carries the text, so that the next turn has it.
"""

from __future__ import annotations

import pybase64

_MARK = "triptych1."


def signature_of(thinking: str, is_shown: bool) -> str:
    """The signature of a block.

    Args:
        is_shown: whether the block has the text too.
    """
    return _MARK if is_shown else _MARK + pybase64.b64encode(thinking.encode()).decode()


def thinking_of(thinking: str, signature: str) -> str:
    """The text of a block that the client sent back. Signatures of other servers are not read."""
    if thinking or not signature.startswith(_MARK):
        return thinking
    try:
        return pybase64.b64decode(signature.removeprefix(_MARK), validate=True).decode()
    except ValueError:
        return ""
