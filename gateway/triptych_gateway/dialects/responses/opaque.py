"""Content that a client gets and sends back as it is: reasoning and compacted conversations.

It is encoded, not encrypted: the model's reasoning is no secret here, and every gateway can read what another one wrote.
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode

from triptych_common.errors import InvalidRequestError

_MARK = "tpv1."
#: Longest text that is read back. A short string can unpack to gigabytes.
_MAX_BYTES = 16 << 20


def seal(text: str) -> str:
    """The text as an opaque string."""
    return _MARK + urlsafe_b64encode(zlib.compress(text.encode())).decode()


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
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(urlsafe_b64decode(content.removeprefix(_MARK)), _MAX_BYTES)
        if not unpacking.eof:
            raise ValueError
        return text.decode()
    except (ValueError, zlib.error):
        raise InvalidRequestError(f"{field}: this server cannot read it; send it as it was received", field=field) from None
