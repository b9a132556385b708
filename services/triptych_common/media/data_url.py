"""data: addresses (RFC 2397): a file inside an address."""

from __future__ import annotations

import base64
import binascii
import urllib.parse


def decode_data_url(url: str, max_bytes: int) -> bytes:
    """The file in a data: address.

    Args:
        max_bytes: most bytes that the file may have; checked before anything is decoded.

    Raises:
        ValueError: it is malformed, empty or too large; the message continues a sentence that begins with the field's name.
    """
    header, comma, payload = url.partition(",")
    if not comma or header[:5].lower() != "data:":
        raise ValueError("is no data: address; the form is data:image/png;base64,...")
    if header.lower().endswith(";base64"):
        if len(payload) // 4 * 3 > max_bytes + 2:
            raise ValueError(f"may have at most {max_bytes} bytes; given: about {len(payload) // 4 * 3}")
        try:
            content = base64.b64decode(urllib.parse.unquote_to_bytes(payload) if "%" in payload else payload, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("has a payload that is not base64") from None
    else:
        content = urllib.parse.unquote_to_bytes(payload)
    if len(content) > max_bytes:
        raise ValueError(f"may have at most {max_bytes} bytes; given: {len(content)}")
    if not content:
        raise ValueError("has an empty payload")
    return content
