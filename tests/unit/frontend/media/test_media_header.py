"""Headers of good media, and what is said of bad ones."""

from __future__ import annotations

import dataclasses
import tracemalloc

import pytest
import support.builders.media_files as media
from hypothesis import given
from hypothesis import strategies as st
from support.builders.media import a_container_sound_file
from triptych.errors import InvalidRequestError
from triptych_common.media.limits import MediaLimits
from triptych_frontend.media.header import read_header
from triptych_frontend.media.item import AUDIO, IMAGE, VIDEO, AudioHeader, ImageHeader

LIMITS = MediaLimits(1 << 25, max_pixels=50_000_000, max_audio_s=600, max_video_s=600, max_video_pixels=1 << 28)


def header(content: bytes, modality: int, limits: MediaLimits = LIMITS, declared_format: str = ""):
    return read_header(content, modality, limits, "messages[0].content[1].media", declared_format)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_sizes_of_images(kind: str) -> None:
    assert header(media.image(40, 30, kind), IMAGE) == ImageHeader(40, 30)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_sizes_are_those_of_the_upright_image(kind: str, orientation: int) -> None:
    turned = orientation >= 5
    assert header(media.image(40, 30, kind, orientation=orientation), IMAGE) == (
        ImageHeader(30, 40) if turned else ImageHeader(40, 30)
    )


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (media.image(1, 1), (1, 1)),
        (media.image(10_000, 3), (10_000, 3)),
        (media.image(40, 30, "JPEG", "CMYK"), (40, 30)),
        (media.image(40, 30, "PNG", "LA"), (40, 30)),
        (media.animation(), (40, 30)),
        # Damage behind the header is the encoder's to find.
        (media.image(400, 300, "JPEG")[:700], (400, 300)),
    ],
    ids=["1x1", "10000x3", "cmyk", "alpha", "animated", "truncated"],
)
def test_odd_images_have_sizes(content: bytes, size: tuple[int, int]) -> None:
    assert header(content, IMAGE) == ImageHeader(*size)


@pytest.mark.parametrize(
    ("content", "modality", "reason"),
    [
        (b"", IMAGE, "empty file"),
        (b"", AUDIO, "empty file"),
        (b"", VIDEO, "empty file"),
        (media.archive(), IMAGE, "no image of a known format"),
        (media.image()[:20], IMAGE, "image"),
        (media.huge_png(), IMAGE, "60000x60000, 3600000000 pixels; at most 50000000"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", IMAGE, "no image of a known format"),
        (media.sound(0), AUDIO, "no samples"),
        (media.archive(), AUDIO, "no sound of a known format"),
        (media.image(), AUDIO, "sound"),
        (media.video(), AUDIO, "no sound in it"),
        (media.sound(), VIDEO, "no pictures in it"),
        (media.archive(), VIDEO, "no video of a known format"),
        (media.sound(16_000)[:30], AUDIO, "sound"),
    ],
)
def test_bad_media_are_refused_by_name_and_reason(content: bytes, modality: int, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        header(content, modality)
    assert caught.value.field == "messages[0].content[1].media"
    assert caught.value.message.startswith("messages[0].content[1].media ")


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
def test_lengths_of_sounds(kind: str) -> None:
    found = header(media.sound(44_100, 44_100, kind), AUDIO)
    assert isinstance(found, AudioHeader)
    assert (found.num_samples, found.sampling_rate) == (44_100, 44_100)


@pytest.mark.parametrize("claimed_bytes", [0, 100, 10_000, 4_000_000, 2**32 - 1])
def test_a_lying_header_counts_for_nothing(claimed_bytes: int) -> None:
    """What counts is what a decoder reads, which is the encoder's number."""
    import io

    import soundfile

    content = media.lying_wav(8000, claimed_bytes)
    samples, _ = soundfile.read(io.BytesIO(content))
    if len(samples) == 0:
        with pytest.raises(InvalidRequestError, match="no samples"):
            header(content, AUDIO)
    else:
        assert header(content, AUDIO) == AudioHeader(len(samples), 16_000)


def test_three_hours_are_refused_by_the_header() -> None:
    with pytest.raises(InvalidRequestError, match=r"10800\.0 s long or more; at most 600 s"):
        header(media.sound(3 * 3600 * 1000, 1000, "FLAC"), AUDIO)


def test_lengths_of_videos() -> None:
    found = header(media.video(25, 64, 48, fps=10), VIDEO)
    assert (found.num_frames, found.width, found.height, found.fps) == (25, 64, 48, 10.0)
    with pytest.raises(InvalidRequestError, match=r"2\.5 s long; at most 2 s"):
        header(media.video(25, fps=10), VIDEO, dataclasses.replace(LIMITS, max_video_s=2))


def test_a_huge_promise_takes_no_memory() -> None:
    tracemalloc.start()
    with pytest.raises(InvalidRequestError):
        header(media.huge_png(), IMAGE)
    header(media.image(7000, 7000, "PNG"), IMAGE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000_000


@given(
    st.binary(max_size=200),
    st.sampled_from([IMAGE, AUDIO, VIDEO]),
    st.sampled_from([b"", b"RIFF", b"\x89PNG\r\n\x1a\n", b"GIF89a"]),
)
def test_any_bytes_give_a_header_or_a_refusal(content: bytes, modality: int, magic: bytes) -> None:
    try:
        header(magic + content, modality)
    except InvalidRequestError as error:
        assert error.field  # noqa: PT017


@pytest.mark.parametrize(
    ("content", "modality", "kind"),
    [
        (media.video(kind="matroska").replace(b"V_MPEG4", b"V_XXXX4"), VIDEO, "video"),
        (a_container_sound_file("matroska").replace(b"A_AAC", b"A_XXX"), AUDIO, "audio"),
        (media.image(kind="AVIF").replace(b"pitm", b"xitm"), IMAGE, "image"),
    ],
    ids=["video-of-no-codec", "sound-of-no-codec", "avif-without-an-item"],
)
def test_what_makes_parsers_stumble_is_refused_in_words(content: bytes, modality: int, kind: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"messages\[0\].content\[1\].media is damaged, or no {kind} that can be read"):
        header(content, modality)


def test_names_in_other_spellings_than_utf8_do_no_harm() -> None:
    assert header(media.video(6, kind="matroska").replace(b"Lavf", b"\xff\xfe\xff\xfe"), VIDEO).num_frames == 6


@pytest.mark.parametrize(
    ("content", "modality", "names"),
    [
        (media.sound(), AUDIO, ["wav", "WAV", "audio/wav", "audio/x-wav", "audio/wave"]),
        (media.sound(kind="MP3"), AUDIO, ["mp3", "audio/mpeg"]),
        (media.sound(kind="FLAC"), AUDIO, ["flac", "audio/x-flac"]),
        (media.sound(kind="OGG"), AUDIO, ["ogg", "audio/ogg", "vorbis"]),
        (a_container_sound_file("mp4", "aac"), AUDIO, ["m4a", "mp4", "audio/mp4", "audio/x-m4a"]),
        (media.image(), IMAGE, ["png", "image/png"]),
        (media.image(kind="JPEG"), IMAGE, ["jpg", "jpeg", "image/jpeg"]),
        (media.image(kind="TIFF"), IMAGE, ["tif", "image/tiff"]),
        (media.video(), VIDEO, ["mp4", "video/mp4", "video/quicktime"]),
        (media.video(kind="matroska"), VIDEO, ["mkv", "webm", "video/x-matroska"]),
    ],
    ids=["wav", "mp3", "flac", "ogg", "m4a", "png", "jpeg", "tiff", "mp4", "mkv"],
)
def test_a_declared_format_is_compared_with_the_file(content: bytes, modality: int, names: list[str]) -> None:
    for name in ["", *names]:
        assert header(content, modality, declared_format=name) == header(content, modality)
    for name in ("aiff", "audio/aiff", "gif", "no format"):
        with pytest.raises(InvalidRequestError, match=f"declared as {name}, and the file is ") as caught:
            header(content, modality, declared_format=name)
        assert caught.value.field == "messages[0].content[1].media.format"
        assert caught.value.limit
        assert caught.value.value == name
