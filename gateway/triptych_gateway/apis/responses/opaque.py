"""Strings that clients get and send back as they are: ids of items, reasoning, compacted conversations."""

from __future__ import annotations

import re
import secrets
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode

from triptych.errors import InvalidRequestError

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


# It is encoded, not encrypted: the model's reasoning is no secret here, and every gateway can read what another one wrote. It is
# not compressed either: a request could then unpack to a thousand times the memory that was reserved for it.
_MARK = "tpv1."
_CHECKSUM_BYTES = 4


def seal(text: str) -> str:
    """The text as an opaque string."""
    content = text.encode()
    return _MARK + urlsafe_b64encode(_checksum(content) + content).decode()


def unseal(content: str, field: str) -> str:
    """The text of an opaque string.

    Args:
        field: the client's name of the field, for the error.

    Raises:
        InvalidRequestError: this server did not make the string, or it was changed.
    """
    try:
        if not content.startswith(_MARK):
            raise ValueError
        unpacked = urlsafe_b64decode(content.removeprefix(_MARK))
        checksum, text = unpacked[:_CHECKSUM_BYTES], unpacked[_CHECKSUM_BYTES:]
        if checksum != _checksum(text):
            raise ValueError
        return text.decode()
    except ValueError:
        raise InvalidRequestError(f"{field}: this server cannot read it; send it as it was received", field=field) from None


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECKSUM_BYTES)
