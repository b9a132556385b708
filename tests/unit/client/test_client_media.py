"""Media of requests: files, addresses, PIL images and arrays."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from PIL import Image
from triptych import media_item
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2


def decoded(item: common_pb2.MediaItem) -> Image.Image:
    image = Image.open(io.BytesIO(item.data))
    assert image.format == "PNG"
    return image


def test_files_are_sent_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    path.write_bytes(b"RIFF")
    for source in (path, str(path), b"RIFF", bytearray(b"RIFF"), memoryview(b"RIFF")):
        item = media_item("audio", source)  # type: ignore[arg-type]
        assert (item.modality, item.data) == (common_pb2.MODALITY_AUDIO, b"RIFF")
    with pytest.raises(FileNotFoundError):
        media_item("video", tmp_path / "none.mp4")


@pytest.mark.parametrize("address", ["https://example.com/a.png", "data:image/png;base64,AAAA", "file:/a.png"])
def test_addresses_are_left_to_the_server(address: str) -> None:
    item = media_item("image", address)
    assert (item.modality, item.url, item.data) == (common_pb2.MODALITY_IMAGE, address, b"")


def test_a_finished_item_is_kept() -> None:
    item = common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, uuid="u")
    assert media_item("image", item) is item


_SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 9)).flatmap(lambda size: st.sampled_from([size, (*size, 3)]))


@given(st_numpy.arrays(np.uint8, _SHAPES))
def test_arrays_become_png_without_loss(array: np.ndarray) -> None:
    assert np.array_equal(np.asarray(decoded(media_item("image", array))), array)


@given(
    st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA"]),
    st.integers(1, 9),
    st.integers(1, 9),
    st.binary(min_size=324, max_size=324),
)
def test_images_become_png_without_loss(mode: str, width: int, height: int, content: bytes) -> None:
    image = Image.frombytes(mode, (width, height), content)
    if mode == "P":
        image.putpalette([number // 3 for number in range(768)])
    sent = decoded(media_item("image", image))
    assert (sent.mode, sent.convert("RGBA").tobytes()) == (mode, image.convert("RGBA").tobytes())


@pytest.mark.parametrize(
    ("array", "named"),
    [
        (np.zeros((2, 2, 3), np.float32), "float32"),
        (np.zeros((2, 2, 3), np.int64), "int64"),
        (np.zeros((2, 2, 4), np.uint8), r"\[2, 2, 4\]"),
        (np.zeros((1, 2, 2, 3), np.uint8), r"\[1, 2, 2, 3\]"),
        (np.zeros((0, 2, 3), np.uint8), r"\[0, 2, 3\]"),
        (np.zeros(4, np.uint8), r"\[4\]"),
    ],
)
def test_other_arrays_are_refused_by_name(array: np.ndarray, named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named) as caught:
        media_item("image", array, field="messages[0].content[1].media")
    assert caught.value.field == "messages[0].content[1].media"


@pytest.mark.parametrize("source", [Image.new("CMYK", (2, 2)), Image.new("F", (2, 2)), 7, None])
def test_what_cannot_be_sent_is_refused(source: Any) -> None:
    with pytest.raises(InvalidRequestError):
        media_item("image", source)


def test_sound_is_no_picture() -> None:
    with pytest.raises(InvalidRequestError, match="ndarray is not a source of audio"):
        media_item("audio", np.zeros((2, 2), np.uint8))
