"""`multi_modal_data` of a prompt as media items."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from triptych.errors import InvalidRequestError
from triptych.requests.media import Kind, media_item
from triptych.v1 import common_pb2

#: A rate of this many Hz is none, and with channels its bytes per second do not fit into the file's header.
_MAX_RATE = 1 << 20
_KINDS: tuple[Kind, ...] = get_args(Kind)


def media_items(multi_modal_data: Mapping[str, Any]) -> Iterator[common_pb2.MediaItem]:
    """The items, kind by kind.

    Args:
        multi_modal_data: "image", "audio" or "video" -> a source, or a list of sources: a path, the bytes of a file, an address;
            for images also a PIL image or an array uint8 [height, width, 3]; for audio also a pair of an array float32 [samples]
            or [samples, channels] and its sampling rate in Hz.

    Raises:
        InvalidRequestError: an unknown kind, or something else than a source.
        OSError: a file cannot be read.
    """
    if not isinstance(multi_modal_data, Mapping):
        name = type(multi_modal_data).__name__
        raise InvalidRequestError(f"multi_modal_data is a dictionary, not {name}", field="multi_modal_data", value=name)
    if unknown := sorted(multi_modal_data.keys() - set(_KINDS)):
        known = ", ".join(_KINDS)
        raise InvalidRequestError(
            f"multi_modal_data has no {unknown[0]!r}; known are {known}", field="multi_modal_data", limit=known, value=unknown[0]
        )
    for kind in _KINDS:
        given = multi_modal_data.get(kind, [])
        sources = given if isinstance(given, list) else [given]
        for index, source in enumerate(sources):
            if kind == "audio" and isinstance(source, tuple) and len(source) == 2:
                source = _wav(*source)
            yield media_item(kind, source, field=f"multi_modal_data.{kind}[{index}]")


def _wav(samples: Any, rate: int) -> bytes:
    """A WAV file of 32-bit floats, which loses nothing."""
    import numpy as np

    array = np.ascontiguousarray(samples, dtype="<f4")
    if array.ndim not in (1, 2):
        raise InvalidRequestError(
            f"audio has the shape [samples] or [samples, channels]; given: {list(array.shape)}", field="audio"
        )
    num_channels = array.shape[1] if array.ndim == 2 else 1
    if not 0 < int(rate) < _MAX_RATE:
        raise InvalidRequestError(
            f"the sampling rate of audio is between 1 and {_MAX_RATE - 1} Hz; given: {rate}",
            field="audio",
            limit=_MAX_RATE - 1,
            value=rate,
        )
    data = array.tobytes()
    # Format 3 is IEEE float.
    form = struct.pack("<HHIIHH", 3, num_channels, int(rate), int(rate) * num_channels * 4, num_channels * 4, 32)
    fact = struct.pack("<I", array.shape[0])
    chunks = _chunk(b"fmt ", form) + _chunk(b"fact", fact) + _chunk(b"data", data)
    return _chunk(b"RIFF", b"WAVE" + chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content
