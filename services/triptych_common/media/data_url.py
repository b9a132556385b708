"""data: URLs (RFC 2397), which contain a file."""

from __future__ import annotations

import urllib.parse

import pybase64


def decode_data_url(url: str, max_bytes: int) -> bytes:
    """The file in a data: URL.

    Args:
        max_bytes: most bytes of the file; checked before anything is decoded.

    Raises:
        ValueError: the URL is malformed, empty or too large. The message continues a sentence that begins with the field's name.
    """
    # A URL can have megabytes, so its payload is not copied before it is decoded.
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
    """The characters from `start` on, as bytes. Raises ValueError if they are not ASCII."""
    if "%" in url:
        return urllib.parse.unquote_to_bytes(url[start:])
    return memoryview(url.encode("ascii"))[start:]
