"""Files inside of JSON bodies, taken out before the JSON is read.

A picture of 8 MB is 11 MB of base64 in a string. Read as JSON it would be copied three times and scanned twice, on the event loop.
So the payloads of data: addresses are cut out of the body as bytes; a name stands in their place, which the client cannot guess.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

import pybase64

#: Payloads that are worth it, in bytes.
_MIN_BYTES = 4096
_MARK = b";base64,"
#: What stands before a payload: a media part's address. Inside of a text, its quotes would have backslashes.
_BEFORE = re.compile(
    rb'"(?:image|video|audio)_url"\s*:\s*\{\s*(?:"\w+"\s*:\s*"[^"\\]*"\s*,\s*)*'
    rb'"url"\s*:\s*"data:[^",\\]*;base64,\Z'
)
_WINDOW_BYTES = 512


class FileParts:
    """The payloads that were cut out of one body.

    Args:
        body: of the request; kept until the last payload was decoded.
    """

    def __init__(self, body: bytes | bytearray) -> None:
        self._nonce = f"~{secrets.token_hex(8)}:"
        self._payloads: dict[str, memoryview] = {}
        self.rest = self._cut(body)

    def __len__(self) -> int:
        """Payloads that were not taken yet."""
        return len(self._payloads)

    def take(self, address: str) -> bytes | None:
        """The file of an address whose payload was cut out; None for any other address. Belongs beside the event loop.

        Raises:
            ValueError: it is no base64; the message continues a sentence that begins with the field's name.
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
    """Where payloads of media addresses begin and end. Those with escapes are left to the slower way."""
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
