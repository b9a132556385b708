"""Content that a client gets and sends back as it is: reasoning and compacted conversations.

It is encoded, not encrypted: the model's reasoning is no secret here, and every gateway can read what another one wrote. It is not
compressed either: a request could then unpack to a thousand times the memory that was reserved for it.
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode

from triptych.errors import InvalidRequestError

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
