"""Files inside JSON bodies, which are cut out before the JSON is parsed.

A picture of 8 MB is a base64 string of 11 MB. Parsing it as JSON would copy it three times and scan it twice, on the event loop.
So the payloads of data: URLs, of Anthropic's image sources, and of Ollama's lists of images, are cut out of the body as bytes. A
name that the client cannot guess replaces each payload.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import orjson
import pybase64

T = TypeVar("T")
#: Smallest payload that is cut out, in bytes.
_MIN_BYTES = 4096
_STRINGS = rb'(?:"\w+"\s*:\s*"[^"\\]*"\s*,\s*)*'
#: The end of the text before a payload -> all of that text: the URL field of a media part (an object with a URL, or in
#: /v1/responses the URL itself), the data field of a source. A prompt cannot match, because its quotes are escaped in JSON.
_BEFORE = {
    b";base64,": re.compile(rb'"(?:image|video|audio)_url"\s*:\s*(?:\{\s*' + _STRINGS + rb'"url"\s*:\s*)?"data:[^",\\]*;base64,\Z'),
    b'"data"': re.compile(rb'"source"\s*:\s*\{\s*' + _STRINGS + rb'"data"\Z'),
    b'"images"': re.compile(rb'[{,]\s*"images"\Z'),
}
#: The marks of media parts and sources, and that of Ollama's requests. In others, `images` may be anything.
MEDIA_MARKS, OLLAMA_MARKS = (b";base64,", b'"data"'), (b'"images"',)
#: Between the mark and the payload.
_OPENING = {
    b";base64,": re.compile(rb""),
    b'"data"': re.compile(rb'\s{0,8}:\s{0,8}"'),
    b'"images"': re.compile(rb'\s{0,8}:\s{0,8}\[\s{0,8}"'),
}
#: Between two payloads of a list.
_NEXT = re.compile(rb'"\s{0,8},\s{0,8}"')
_WINDOW_BYTES = 512
#: Most marks in one body. Looking at a mark takes microseconds, and a body of 32 MiB has space for five million.
MAX_MARKS = 10_000
_PART_BYTES = 1 << 20
#: A larger body is parsed and converted in a thread, because that takes up to hundreds of milliseconds per megabyte.
_LARGE_BYTES = 64 << 10
#: One thread for all bodies: with several, the event loop would wait for each of them before it gets the interpreter's lock.
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="bodies")


async def run_sized(num_bytes: int, work: Callable[[], T], small_bytes: int = _LARGE_BYTES) -> T:
    """Run work on the content of a body: in a thread if the body is larger than that. Work in the thread is done in order."""
    if num_bytes <= small_bytes:
        return work()
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_THREAD, lambda: context.run(work))


class FileParts:
    """The payloads that were cut out of one body.

    Args:
        body: the request's body. It stays in memory until the last payload is decoded.
        num_bytes: its size, if the body came in another form.
        marks: what may stand before a payload.

    Raises:
        ValueError: the body has too many places that look like files. The message continues a sentence that begins with the body.
    """

    def __init__(self, body: bytes | bytearray, num_bytes: int = 0, marks: tuple[bytes, ...] = MEDIA_MARKS) -> None:
        self.num_bytes = max(len(body), num_bytes)
        self._nonce = f"~{secrets.token_hex(8)}:"
        self._names = re.compile(re.escape(self._nonce.encode()) + rb"[0-9]+")
        self._payloads: dict[str, memoryview] = {}
        #: Contents of files that the request names by their ids, and texts of documents by their keys.
        self.stored: dict[str, bytes] = {}
        self.texts: dict[tuple[str | None, ...], str] = {}
        self.rest = self._cut(body, marks)

    def __len__(self) -> int:
        """The number of payloads that were not taken yet."""
        return len(self._payloads)

    async def run(self, work: Callable[[], T]) -> T:
        """Run work on the body's content, in a thread if the body is large."""
        return await run_sized(self.num_bytes, work)

    def take(self, address: str) -> bytes | None:
        """The file of a URL or a data field whose payload was cut out; None for any other. It decodes, so use `run`.

        Raises:
            ValueError: the payload is not base64. The message continues a sentence that begins with the field's name.
        """
        name = address[address.rfind(",") + 1 :] if address.find(self._nonce, 0, _WINDOW_BYTES + len(self._nonce)) >= 0 else ""
        payload = self._payloads.pop(name, None)
        if payload is None:
            return None
        try:
            return pybase64.b64decode(payload, validate=True)
        except ValueError:
            raise ValueError("has a payload that is not base64") from None

    def restored(self, text: bytes) -> bytes:
        """JSON with the payloads in the place of their names, those that were not taken yet."""
        return self._names.sub(lambda name: self._payloads.get(name[0].decode(), name[0]), text)

    def json_text(self, value: Any) -> str:
        """A JSON value of the body as text, in its order. What looks like a file there is none: its payload is put back."""
        text = orjson.dumps(value)
        if self._payloads:
            text = self._names.sub(lambda name: self._payloads.pop(name[0].decode(), name[0]), text)
        return text.decode()

    def _cut(self, body: bytes | bytearray, marks: tuple[bytes, ...]) -> bytes | bytearray:
        """The body without the payloads."""
        if _has_too_many_marks(body, marks):
            named = " and ".join(mark.decode() for mark in marks)
            raise ValueError(f"has {named} more than {MAX_MARKS} times")
        view, kept, position = memoryview(body), list[bytes | memoryview](), 0
        for start, end in _payloads(body, marks):
            name = f"{self._nonce}{len(self._payloads)}"
            self._payloads[name] = view[start:end]
            kept += [view[position:start], name.encode()]
            position = end
        if not kept:
            return body
        return b"".join([*kept, view[position:]])


def _has_too_many_marks(body: bytes | bytearray, marks: tuple[bytes, ...]) -> bool:
    """Whether the body has more than MAX_MARKS marks. It is read in parts: no other thread runs while one of them is searched."""
    num_marks = 0
    for start in range(0, len(body), _PART_BYTES):
        # A mark belongs to the part in which it begins.
        num_marks += sum(body.count(mark, start, start + _PART_BYTES + len(mark) - 1) for mark in marks)
        if num_marks > MAX_MARKS:
            return True
    return False


def _payloads(body: bytes | bytearray, marks: tuple[bytes, ...]) -> Iterator[tuple[int, int]]:
    """Start and end of each payload to cut out. Payloads with escapes stay in the body and are parsed as JSON."""
    places = {mark: body.find(mark) for mark in marks}
    while found := [(place, mark) for mark, place in places.items() if place >= 0]:
        place, mark = min(found)
        after = place + len(mark)
        opening = _OPENING[mark].match(body, after)
        start = after if opening is None else opening.end()
        end = body.find(b'"', start)
        if end < 0:
            return
        is_place = opening is not None and _BEFORE[mark].search(body[max(0, after - _WINDOW_BYTES) : after]) is not None
        while is_place and _is_payload(body, start, end):
            yield start, end
            following = _NEXT.match(body, end) if mark in OLLAMA_MARKS else None
            if following is None:
                break
            start, end = following.end(), body.find(b'"', following.end())
            if end < 0:
                return
        # What the string holds is no mark.
        places = {own: body.find(own, end) if -1 < at < end else at for own, at in places.items()}


def _is_payload(body: bytes | bytearray, start: int, end: int) -> bool:
    """Whether a string is long enough to be cut out, and without escapes."""
    return end - start >= _MIN_BYTES and body.find(b"\\", start, end) < 0 and body.find(b"%", start, end) < 0
