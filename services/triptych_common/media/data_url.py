"""data: addresses (RFC 2397): a file inside an address."""

from __future__ import annotations

import urllib.parse

import pybase64


def decode_data_url(url: str, max_bytes: int) -> bytes:
    """The file in a data: address.

    Args:
        max_bytes: most bytes that the file may have; checked before anything is decoded.

    Raises:
        ValueError: it is malformed, empty or too large; the message continues a sentence that begins with the field's name.
    """
    # Addresses have megabytes: what follows the comma is not copied before it is decoded.
    end = url.find(",")
    header, num_chars = url[: max(end, 0)], len(url) - end - 1
    if end < 0 or header[:5].lower() != "data:":
        raise ValueError("is no data: address; the form is data:image/png;base64,...")
    if header.lower().endswith(";base64"):
        if num_chars // 4 * 3 > max_bytes + 2:
            raise ValueError(f"may have at most {max_bytes} bytes; given: about {num_chars // 4 * 3}")
        try:
            content = pybase64.b64decode(_payload_bytes(url, len(header) + 1), validate=True)
        except ValueError:
            raise ValueError("has a payload that is not base64") from None
    else:
        content = urllib.parse.unquote_to_bytes(url[end + 1 :])
    if len(content) > max_bytes:
        raise ValueError(f"may have at most {max_bytes} bytes; given: {len(content)}")
    if not content:
        raise ValueError("has an empty payload")
    return content


def _payload_bytes(url: str, start: int) -> bytes | memoryview:
    """The characters from there on, as bytes. Raises ValueError for those that are not ASCII."""
    if "%" in url:
        return urllib.parse.unquote_to_bytes(url[start:])
    return memoryview(url.encode("ascii"))[start:]
