"""What a processor makes of a picture on its way is bounded, whatever the picture's shape and the request's options."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from support.builders.media_files import checkpoint, image, video
from triptych.errors import ContextLengthError, InvalidRequestError
from triptych.v1 import common_pb2
from triptych_common.media.geometry import resized
from triptych_common.media.limits import MediaLimits
from triptych_common.media.processor_options import NOT_FOR_REQUESTS, check_option_numbers
from triptych_encoder.media.image import decode_image
from triptych_encoder.media.preprocess import Preprocessor
from triptych_encoder.tower.loading import load_config
from triptych_frontend.media.item import IMAGE, MODALITY_NAMES, ImageHeader, VideoHeader
from triptych_frontend.media.processors.placeholders import PlaceholderExpander
from triptych_frontend.service import _load_text_and_media

LIMITS = MediaLimits(1 << 25, 1_000_000, 600, 600, 1 << 28)


@functools.cache
def preprocessor(family: str) -> Preprocessor:
    path = checkpoint(family)
    return Preprocessor(path, load_config(path, family), LIMITS)


@functools.cache
def expander(family: str) -> PlaceholderExpander:
    _, found, why = _load_text_and_media(checkpoint(family), LIMITS.max_pixels)
    assert found is not None, why
    return found


@pytest.mark.parametrize(
    ("family", "width", "height", "options", "reason"),
    [
        # Resized by the shorter edge, a strip of 6,000 pixels becomes one of more than a million.
        ("llava_clip", 2, 3000, {}, "it would be made 28x42000"),
        ("llava_clip", 40, 30, {"size": {"shortest_edge": 900}}, "it would be made 1200x900"),
        ("llava_onevision", 40, 30, {"image_grid_pinpoints": [[1400, 1400]]}, "it would be made"),
    ],
)
def test_a_picture_is_not_made_larger_than_pictures_may_be(
    family: str, width: int, height: int, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        preprocessor(family).prepare(common_pb2.MODALITY_IMAGE, image(width, height), options)
    with pytest.raises(InvalidRequestError, match=reason) as refused:
        expander(family).expand(ImageHeader(width, height), options, "messages[0].content[0].media")
    assert refused.value.field == "messages[0].content[0].media"
    good = preprocessor(family).prepare(common_pb2.MODALITY_IMAGE, image(40, 30), {})
    assert good.item.num_tokens == expander(family).expand(ImageHeader(40, 30), {}, "item").num_embeds


@pytest.mark.parametrize(
    "options",
    [
        {"image_grid_pinpoints": [[5000, 5000]]},
        {"image_mean": [float("nan")] * 3},
        {"size": {"height": 5000, "width": 40}},
        {"patch_size": 1},
    ],
)
def test_options_are_checked_alike(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        preprocessor("llava_onevision").prepare(common_pb2.MODALITY_IMAGE, image(), options)
    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        check_option_numbers(expander("llava_onevision").options_for(IMAGE, options, "item")[0], LIMITS.max_pixels, "item")


def test_a_format_that_is_decoded_when_opened_is_none() -> None:
    icon = b"\0\0\1\0\1\0" + bytes([16, 16, 0, 0, 1, 0, 32, 0]) + len(image()).to_bytes(4, "little") + (22).to_bytes(4, "little")
    with pytest.raises(InvalidRequestError, match="no known format"):
        decode_image(icon + image(), LIMITS)


def test_sizes_after_resizing() -> None:
    class Size:
        shortest_edge = longest_edge = height = width = max_height = max_width = None

        def __init__(self, **edges: int) -> None:
            self.__dict__.update(edges)

    assert resized(30, 40, Size(shortest_edge=60)) == (60, 80)
    assert resized(30, 40, Size(shortest_edge=60, longest_edge=40)) == (30, 40)
    assert resized(30, 40, Size(max_height=15, max_width=400)) == (15, 20)
    assert resized(30, 40, Size(height=7, width=9)) == (7, 9)
    assert resized(30, 40, Size()) == (30, 40)


@pytest.mark.parametrize(
    ("family", "modality", "data"),
    [
        ("qwen2_vl", common_pb2.MODALITY_VIDEO, video(kind="matroska").replace(b"V_MPEG4", b"V_XXXX4")),
        ("qwen2_vl", common_pb2.MODALITY_IMAGE, image(kind="AVIF").replace(b"pitm", b"xitm")),
    ],
    ids=["video-of-no-codec", "avif-without-an-item"],
)
def test_what_makes_decoders_stumble_is_refused_in_words(family: str, modality: common_pb2.Modality, data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="is damaged, or of a kind that cannot be decoded"):
        preprocessor(family).prepare(modality, data, {})


def test_a_video_that_options_make_longer_than_the_context_is_no_prompt() -> None:
    _, found, _ = _load_text_and_media(checkpoint("qwen2_vl"), LIMITS.max_pixels)
    assert found is not None
    found.max_embeds = 1000
    with pytest.raises(ContextLengthError, match=r"item takes \d+ tokens; the model's context has 1000") as refused:
        found.expand(VideoHeader(640, 480, 1536, 2.0), {"max_frames": 768, "min_pixels": 3_000_000}, "item")
    assert refused.value.field == "item"


@pytest.mark.parametrize("family", ["llava_onevision", "qwen2_vl", "idefics3", "llava_pixtral", "qwen2_audio"])
def test_frontend_and_encoder_know_the_same_options(family: str) -> None:
    calls = preprocessor(family)._calls()
    for modality in expander(family).modalities:
        kind = MODALITY_NAMES[modality]
        assert expander(family)._known_options(modality) == calls.valid_options(kind) - NOT_FOR_REQUESTS
