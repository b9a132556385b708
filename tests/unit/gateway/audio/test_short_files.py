"""Which files are surely short, so that they need not be decoded."""

from __future__ import annotations

import struct
import time

import pytest
from support.builders.media_files import talk
from triptych_gateway.apis.audio.cutting import is_short

LONG = talk(31)
DATA = LONG.index(b"data") + 4


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (talk(29.9), True),
        (LONG, False),
        (LONG[:DATA] + bytes(4) + LONG[DATA + 4 :], False),  # written as it was made
        (bytes(15_000), True),
        (bytes(16_000), False),
    ],
    ids=["short", "long", "no length", "few bytes", "no sound"],
)
def test_is_short(content: bytes, expected: bool) -> None:
    assert is_short(content, 30.0) is expected


def test_a_file_of_many_parts_takes_no_time() -> None:
    parts = b"junk\0\0\0\0" * 200_000
    content = b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WAVE" + parts
    start_s = time.process_time()
    assert not is_short(content, 30.0)
    assert time.process_time() - start_s < 0.05
