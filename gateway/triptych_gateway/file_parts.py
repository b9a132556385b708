"""Files inside JSON bodies, which are cut out before the JSON is parsed.

A picture of 8 MB is a base64 string of 11 MB. Parsing it as JSON would copy it three times and scan it twice, on the event loop.
So the payloads of data: URLs are cut out of the body as bytes. A name that the client cannot guess replaces each payload.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

import pybase64

#: Smallest payload that is cut out, in bytes.
_MIN_BYTES = 4096
_MARK = b";base64,"
#: The text before a payload: the URL field of a media part. A prompt cannot match, because its quotes are escaped in JSON.
_BEFORE = re.compile(
    rb'"(?:image|video|audio)_url"\s*:\s*\{\s*(?:"\w+"\s*:\s*"[^"\\]*"\s*,\s*)*'
    rb'"url"\s*:\s*"data:[^",\\]*;base64,\Z'
)
_WINDOW_BYTES = 512


class FileParts:
    """The payloads that were cut out of one body.

    Args:
        body: the request's body. It stays in memory until the last payload is decoded.
    """

    def __init__(self, body: bytes | bytearray) -> None:
        self._nonce = f"~{secrets.token_hex(8)}:"
        self._payloads: dict[str, memoryview] = {}
        self.rest = self._cut(body)

    def __len__(self) -> int:
        """The number of payloads that were not taken yet."""
        return len(self._payloads)

    def take(self, address: str) -> bytes | None:
        """The file of a URL whose payload was cut out; None for any other URL. It decodes, so call it in a thread.

        Raises:
            ValueError: the payload is not base64. The message continues a sentence that begins with the field's name.
        """
        name = address[address.rfind(",") + 1 :] if address.find(self._nonce, 0, _WINDOW_BYTES + len(self._nonce)) >= 0 else ""
        payload = self._payloads.pop(name, None)
        return None if payload is None else _decoded(payload)

    def _cut(self, body: bytes | bytearray) -> bytes | bytearray:
        """The body without the payloads."""
        view, kept, position = memoryview(body), list[bytes | memoryview](), 0
        for start, end in _payloads(body):
            name = f"{self._nonce}{len(self._payloads)}"
            self._payloads[name] = view[start:end]
            kept += [view[position:start], name.encode()]
            position = end
        if not kept:
            return body
        return b"".join([*kept, view[position:]])


def _payloads(body: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Start and end of each payload to cut out. Payloads with escapes stay in the body and are parsed as JSON."""
    mark = body.find(_MARK)
    while mark >= 0:
        start = mark + len(_MARK)
        end = body.find(b'"', start)
        if end < 0:
            return
        is_plain = body.find(b"\\", start, end) < 0 and body.find(b"%", start, end) < 0
        if end - start >= _MIN_BYTES and is_plain and _BEFORE.search(body[max(0, start - _WINDOW_BYTES) : start]):
            yield start, end
        mark = body.find(_MARK, end)


def _decoded(payload: memoryview) -> bytes:
    try:
        return pybase64.b64decode(payload, validate=True)
    except ValueError:
        raise ValueError("has a payload that is not base64") from None
