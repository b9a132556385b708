"""Raw files to pixels, samples and frames: what is good comes out right, what is bad is refused, memory stays bounded."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import tracemalloc
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.builders.media import (
    a_container_sound_file,
    a_picture,
    a_png_that_claims,
    a_sound_file,
    a_video_file,
    an_image_file,
    samples,
)
from triptych.errors import InvalidRequestError
from triptych_common.media.geometry import FrameSampling, resampled_length
from triptych_common.media.limits import MediaLimits
from triptych_encoder.media import video
from triptych_encoder.media.audio import decode_audio, resample
from triptych_encoder.media.image import decode_image
from triptych_encoder.media.video import decode_video

LIMITS = MediaLimits(max_bytes=4 << 20, max_pixels=1_000_000, max_audio_s=20.0, max_video_s=20.0, max_video_pixels=2_000_000)
QWEN2 = FrameSampling.from_config({"fps": 2.0}, {})


def a_zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "hello" * 100)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (a_zip(), "no known format"),
        (b"\xff\xd8\xff", "no known format"),
        (an_image_file("JPEG", a_picture(200, 200))[:2000], "truncated or damaged"),
        (an_image_file("PNG", a_picture(200, 200))[:2000], "truncated or damaged"),
        (a_png_that_claims(60_000, 60_000), "60000x60000"),
        (a_png_that_claims(900, 900), "truncated or damaged"),
        (b"\0" * (5 << 20), "5242880 bytes"),
        (a_sound_file(), "no known format"),
    ],
    ids=["empty", "zip", "stub", "half-jpeg", "half-png", "bomb", "lying-png", "too-many-bytes", "wav"],
)
def test_bad_pictures_are_refused_in_words(data: bytes, reason: str) -> None:
    tracemalloc.start()
    with pytest.raises(InvalidRequestError, match=reason) as refused:
        decode_image(data, LIMITS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused.value.field == "data"
    assert peak < 16 << 20


def test_modes_become_rgb() -> None:
    for mode in ("L", "LA", "RGBA", "P", "1", "CMYK", "YCbCr"):
        kind = {"CMYK": "JPEG", "YCbCr": "JPEG"}.get(mode, "PNG")
        file = an_image_file(kind, a_picture(mode="RGB").convert(mode))
        assert decode_image(file, LIMITS).mode == "RGB"


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    grey = Image.fromarray(np.full((4, 4), 32_768, np.uint16))
    assert np.asarray(decode_image(an_image_file("PNG", grey), LIMITS)).max() == 128


def test_a_picture_is_turned_as_its_exif_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = decode_image(an_image_file("JPEG", a_picture(90, 50), exif=exif), LIMITS)
    assert upright.size == (50, 90)


def test_an_animation_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    file = an_image_file("GIF", frames[0], save_all=True, append_images=frames[1:])
    assert decode_image(file, LIMITS).getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("size", [(1, 1), (10_000, 3), (3, 10_000)])
def test_odd_sizes_are_decoded(size: tuple[int, int]) -> None:
    assert decode_image(an_image_file("PNG", Image.new("RGB", size)), LIMITS).size == size


@given(st.binary(max_size=200), st.integers(0, 3))
@settings(max_examples=200)
def test_noise_is_refused_never_raised(data: bytes, kind: int) -> None:
    beginning = (b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0\x00\x10JFIF", b"GIF89a")[kind]
    with contextlib.suppress(InvalidRequestError):
        decode_image(beginning + data, LIMITS)


def lying_wav(claimed_bytes: int) -> bytes:
    file = bytearray(a_sound_file())
    at = file.index(b"data") + 4
    file[at : at + 4] = claimed_bytes.to_bytes(4, "little")
    return bytes(file)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (bytes, "empty"),
        (a_zip, "no known format"),
        (lambda: a_sound_file(data=np.zeros((0, 1), np.float32)), "no samples"),
        (lambda: a_sound_file(data=samples(21.0)), "at most 20 s"),
        (lambda: a_sound_file(data=np.full((100, 1), np.nan, np.float32), subtype="FLOAT"), "not numbers"),
        (an_image_file, "no sound|no known format"),
        (a_video_file, "no sound"),
        (lambda: a_container_sound_file(seconds=21.0), "at most 20 s"),
    ],
    ids=["empty", "zip", "no-samples", "too-long", "nan", "png", "silent-video", "too-long-m4a"],
)
def test_bad_sounds_are_refused_in_words(data: Callable[[], bytes], reason: str) -> None:
    file = data()
    with pytest.raises(InvalidRequestError, match=reason):
        decode_audio(file, 16_000, LIMITS)


@pytest.mark.parametrize("claimed", [0xFFFFFFFF, 1 << 30, 0x7FFFFFF0, 10])
def test_a_lying_header_costs_no_memory(claimed: int) -> None:
    tracemalloc.start()
    try:
        decoded = decode_audio(lying_wav(claimed), 16_000, LIMITS)
        assert len(decoded) <= 16_000
    except InvalidRequestError:
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_a_wav_is_its_samples() -> None:
    data = samples()
    np.testing.assert_array_equal(decode_audio(a_sound_file(data=data, subtype="FLOAT"), 16_000, LIMITS), data[:, 0])


def test_channels_are_averaged() -> None:
    data = samples(channels=2)
    decoded = decode_audio(a_sound_file(data=data, subtype="FLOAT"), 16_000, LIMITS)
    np.testing.assert_allclose(decoded, data.mean(axis=1), atol=1e-6)


@pytest.mark.parametrize(("kind", "options"), [("FLAC", {}), ("OGG", {}), ("MP3", {})])
def test_compressed_sounds_are_read(kind: str, options: dict[str, Any]) -> None:
    decoded = decode_audio(a_sound_file(kind, **options), 16_000, LIMITS)
    spectrum = np.abs(np.fft.rfft(decoded))
    assert abs(np.argmax(spectrum) * 16_000 / len(decoded) - 440) < 5


def test_what_only_ffmpeg_reads_is_read() -> None:
    decoded = decode_audio(a_container_sound_file(), 16_000, LIMITS)
    assert 15_000 < len(decoded) < 18_000
    assert abs(np.argmax(np.abs(np.fft.rfft(decoded))) * 16_000 / len(decoded) - 440) < 5


@given(st.integers(1, 40_000), st.sampled_from([8_000, 11_025, 22_050, 24_000, 44_100, 48_000]))
@settings(max_examples=40)
def test_resampling_gives_the_length_that_was_counted(num_samples: int, rate: int) -> None:
    assert len(resample(np.zeros(num_samples, np.float32), rate, 16_000)) == resampled_length(num_samples, rate, 16_000)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (bytes, "empty"),
        (a_zip, "no known format"),
        (a_sound_file, "no picture track"),
        (lambda: a_video_file(60, fps=2), "at most 20 s"),
        (lambda: a_video_file(100, 640, 400), "a lower fps"),
        (lambda: a_video_file(31)[:-4000], "damaged|truncated"),
    ],
    ids=["empty", "zip", "wav", "too-long", "too-many-pixels", "truncated"],
)
def test_bad_videos_are_refused_in_words(data: Callable[[], bytes], reason: str) -> None:
    file = data()
    with pytest.raises(InvalidRequestError, match=reason):
        decode_video(file, QWEN2, LIMITS)


def test_sampled_frames_are_those_of_the_video() -> None:
    file = a_video_file(31)
    every = decode_video(file, FrameSampling.from_config({}, {"do_sample_frames": False}), LIMITS)
    some = decode_video(file, QWEN2, LIMITS)
    assert every.total_num_frames == some.total_num_frames == len(every.frames) == 31
    assert some.fps == 10.0
    np.testing.assert_array_equal(some.frames, every.frames[some.indices])


def a_jpeg_of_many_scans(num_scans: int) -> bytes:
    """The last scan of a progressive JPEG so many times more, a few bytes each."""
    data = an_image_file("JPEG", Image.new("L", (64, 64), 100), progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + (b"\xff\xff" + last) * num_scans + data[-2:]


def test_a_jpeg_of_endless_scans_is_refused() -> None:
    assert decode_image(a_jpeg_of_many_scans(5), LIMITS).size == (64, 64)
    with pytest.raises(InvalidRequestError, match="more than 100 scans"):
        decode_image(a_jpeg_of_many_scans(200), LIMITS)


@pytest.mark.parametrize(("decode", "data"), [("audio", a_sound_file), ("video", a_video_file)])
def test_decoding_ends_in_time(decode: str, data: Callable[[], bytes]) -> None:
    hasty, file = dataclasses.replace(LIMITS, max_decode_s=-1), data()
    with pytest.raises(InvalidRequestError, match=f"the {decode} takes longer than -1 s to decode"):
        decode_audio(file, 16_000, hasty) if decode == "audio" else decode_video(file, QWEN2, hasty)


def test_frames_are_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "MAX_VIDEO_FRAMES", 30)
    with pytest.raises(InvalidRequestError, match="more than 30 frames"):
        decode_video(a_video_file(num_frames=31), QWEN2, LIMITS)
