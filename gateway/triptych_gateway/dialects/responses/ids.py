"""Ids of responses and items. An item's id contains its response, so that a reference to the item leads to the response."""

from __future__ import annotations

import re
import secrets

_ITEM = re.compile(r"[a-z]+_([0-9a-f]{32})_[io][0-9]{1,6}")


def new_response_id() -> str:
    """A fresh id. It cannot be guessed, and is never the client's own request id, which may repeat."""
    return f"resp_{secrets.token_hex(16)}"


def output_item_id(kind: str, response_id: str, index: int) -> str:
    """The id of an output item.

    Args:
        kind: msg, rs, fc or cmp.
    """
    return f"{kind}_{response_id.removeprefix('resp_')}_o{index}"


def input_item_id(kind: str, response_id: str, index: int) -> str:
    """The id of an input item that came without one."""
    return f"{kind}_{response_id.removeprefix('resp_')}_i{index}"


def response_of_item(item_id: str) -> str | None:
    """The response that an item belongs to; None if the id was not made here."""
    match = _ITEM.fullmatch(item_id)
    return None if match is None else f"resp_{match[1]}"
