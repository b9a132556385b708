"""Errors for media files that exceed a limit (see triptych_common.media.limits) or cannot be used."""

from __future__ import annotations

import time

from triptych.errors import InvalidRequestError
from triptych_common.media.limits import MediaLimits


def bad_media(kind: str, what: str, limit: object = "", value: object = "") -> InvalidRequestError:
    """The error for a file that cannot be used. Its message is `the {kind} {what}`."""
    return InvalidRequestError(f"the {kind} {what}", field="data", limit=limit, value=value)


def check_size(kind: str, data: bytes, limits: MediaLimits) -> None:
    """Raise InvalidRequestError for an empty file or one with too many bytes."""
    if not data:
        raise bad_media(kind, "file is empty (0 bytes)", value=0)
    if len(data) > limits.max_bytes:
        raise bad_media(kind, f"file has {len(data)} bytes; at most {limits.max_bytes} are taken", limits.max_bytes, len(data))


def check_pixels(kind: str, width: int, height: int, limits: MediaLimits) -> None:
    """Raise InvalidRequestError for no pixels or too many."""
    if width < 1 or height < 1:
        raise bad_media(kind, f"has no pixels ({width}x{height})", value=f"{width}x{height}")
    if width * height > limits.max_pixels:
        raise bad_media(
            kind,
            f"is {width}x{height}, {width * height} pixels; at most {limits.max_pixels} are taken",
            limits.max_pixels,
            width * height,
        )


class DecodeClock:
    """The time limit for decoding one file. Decoders call `check` between two pieces of the file."""

    def __init__(self, kind: str, limits: MediaLimits) -> None:
        self._kind, self._limit_s = kind, limits.max_decode_s
        self._end_s = time.monotonic() + limits.max_decode_s

    def check(self) -> None:
        """Raise InvalidRequestError when the time is over."""
        if time.monotonic() > self._end_s:
            raise bad_media(self._kind, f"takes longer than {self._limit_s:g} s to decode (max_decode_s)", self._limit_s)
