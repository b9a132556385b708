"""Reads the header of a media file: format, size, length, rate. It decodes as little as possible, and always within limits.

It must agree with the encoder's decoding: the same formats, the same orientation, the same count of samples and frames.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any, TypeAlias

import av
import soundfile
from PIL import Image, UnidentifiedImageError
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2
from triptych_common.media.container import open_container
from triptych_common.media.limits import IMAGE_FORMATS, MAX_SAMPLING_RATE, MAX_VIDEO_FRAMES, MIN_SAMPLING_RATE, MediaLimits

from triptych_frontend.errors import first_line, refusal
from triptych_frontend.media.item import AUDIO, IMAGE, MODALITY_NAMES, AudioHeader, ImageHeader, MediaHeader, VideoHeader

_ORIENTATION_TAG = 0x0112
#: EXIF orientations that swap width and height.
_TURNED = frozenset({5, 6, 7, 8})
_PNG_HEADER_BYTES = 8
_BLOCK_SAMPLES = 1 << 16
_PCM_BYTES = {"PCM_U8": 1, "PCM_S8": 1, "PCM_16": 2, "PCM_24": 3, "PCM_32": 4, "FLOAT": 4, "DOUBLE": 8}
#: Other names of formats -> the names in this module.
_SYNONYMS = {
    "jpg": "jpeg",
    "tif": "tiff",
    "wave": "wav",
    "vnd.wave": "wav",
    "mpeg": "mp3",
    "mpga": "mp3",
    "oga": "ogg",
    "quicktime": "mov",
    "mkv": "matroska",
}
#: A header, and the names of the file's format, the most common one first.
_Read: TypeAlias = tuple[MediaHeader, list[str]]

# Our own limit is checked before any pixel is decoded. Pillow's limit would only warn at first.
Image.MAX_IMAGE_PIXELS = None


def read_header(
    content: bytes, modality: common_pb2.Modality, limits: MediaLimits, field: str, declared_format: str = ""
) -> MediaHeader:
    """Size and length of a raw file.

    Args:
        field: the item's field in the request, for errors.
        declared_format: the client's declared format, e.g. `wav` or `audio/wav`; empty if it declares none.

    Raises:
        InvalidRequestError: the file does not have this modality or the declared format, is damaged or empty, or exceeds a limit.
    """
    if not content:
        raise refusal(field, "is an empty file (0 bytes)", 1, 0)
    try:
        read = {IMAGE: _image_header, AUDIO: _audio_header}.get(modality, _video_header)
        header, formats = read(content, limits, field)
        if declared_format:
            _check_format(declared_format, formats, field)
        return header
    except InvalidRequestError:
        raise
    # Parsers of many formats run here on untrusted files. They raise more than their documented errors.
    except Exception as error:
        name = MODALITY_NAMES.get(modality, "media")
        raise refusal(field, f"is damaged, or no {name} that can be read: {first_line(error)}") from error


def _check_format(declared: str, formats: Sequence[str], field: str) -> None:
    """Refuse a file that does not have the format that the client declared.

    Args:
        formats: names of the file's format, the most common one first.
    """
    name = declared.strip().lower().rpartition("/")[2].removeprefix("x-")
    if name not in formats and _SYNONYMS.get(name) not in formats:
        message = f"{field} is declared as {declared}, and the file is {formats[0]}"
        raise InvalidRequestError(message, field=f"{field}.format", limit=formats[0], value=declared)


def _image_header(content: bytes, limits: MediaLimits, field: str) -> _Read:
    try:
        with Image.open(BytesIO(content), formats=IMAGE_FORMATS) as image:
            width, height = image.size
            _check_pixels(width, height, limits, field)
            orientation = _orientation(image, content)
            # MPO is a JPEG with further images after the first.
            formats = ["jpeg"] if image.format == "MPO" else [str(image.format).lower()]
    except UnidentifiedImageError as error:
        known = ", ".join(IMAGE_FORMATS)
        raise refusal(field, f"is no image of a known format; known are {known}", known) from error
    # The exceptions of Pillow's parsers for broken files.
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, struct.error) as error:
        raise refusal(field, f"is a damaged image: {error}") from error
    return ImageHeader(height, width) if orientation in _TURNED else ImageHeader(width, height), formats


def _orientation(image: Image.Image, content: bytes) -> Any:
    if image.format == "TIFF":
        return None  # Pillow rotates these itself, and reports the upright size
    if image.format == "PNG" and "exif" not in image.info:
        exif = _png_exif(content)
        if exif is not None:
            parsed = Image.Exif()
            parsed.load(exif)
            return parsed.get(_ORIENTATION_TAG)
    # Not image.getexif(): for a PNG it would decode the pixels to look for a chunk after them.
    return Image.Image.getexif(image).get(_ORIENTATION_TAG)


def _png_exif(content: bytes) -> bytes | None:
    position = _PNG_HEADER_BYTES
    while position + 8 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, position)
        if kind == b"eXIf":
            return content[position + 8 : position + 8 + length]
        position += 12 + int(length)
    return None


def _check_pixels(width: int, height: int, limits: MediaLimits, field: str) -> None:
    if width < 1 or height < 1:
        raise refusal(field, f"has no pixels ({width}x{height})", 1, f"{width}x{height}")
    if width * height > limits.max_pixels:
        problem = f"is {width}x{height}, {width * height} pixels; at most {limits.max_pixels} are taken"
        raise refusal(field, problem, limits.max_pixels, width * height)


def _audio_header(content: bytes, limits: MediaLimits, field: str) -> _Read:
    try:
        with soundfile.SoundFile(BytesIO(content)) as file:
            rate = int(file.samplerate)
            _check_audio(rate, int(file.frames), limits, field)
            num_samples = _count_samples(file, len(content), limits, field)
            formats = [file.format.removesuffix("EX").lower(), file.subtype.lower()]
    except (soundfile.LibsndfileError, RuntimeError):
        rate, num_samples, formats = _container_audio(content, limits, field)
    if num_samples < 1:
        raise refusal(field, "has no samples", 1, 0)
    return AudioHeader(num_samples, rate), formats


def _count_samples(file: soundfile.SoundFile, num_bytes: int, limits: MediaLimits, field: str) -> int:
    """Samples per channel after decoding: the header's number if the file is long enough for it, else counted by reading."""
    width = _PCM_BYTES.get(file.subtype)
    if width is not None and file.format in ("WAV", "WAVEX", "AIFF") and file.frames * file.channels * width <= num_bytes:
        return int(file.frames)
    num_samples = 0
    while block := len(file.read(_BLOCK_SAMPLES, dtype="float32", always_2d=True)):
        num_samples += block
        _check_audio(file.samplerate, num_samples, limits, field)
    return num_samples


def _check_audio(rate: int, num_samples: int, limits: MediaLimits, field: str) -> None:
    if not MIN_SAMPLING_RATE <= rate <= MAX_SAMPLING_RATE:
        problem = f"has {rate} samples per second; {MIN_SAMPLING_RATE} to {MAX_SAMPLING_RATE} are taken"
        raise refusal(field, problem, MAX_SAMPLING_RATE, rate)
    if num_samples > limits.max_samples(rate):
        seconds, most = f"{num_samples / rate:.1f}", f"{limits.max_samples(rate) / rate:g}"
        raise refusal(field, f"is {seconds} s long or more; at most {most} s are taken at {rate} samples per second", most, seconds)


def _container_audio(content: bytes, limits: MediaLimits, field: str) -> tuple[int, int, list[str]]:
    """Rate, samples and formats of a file that libsndfile cannot read: m4a, webm, the audio track of a video. Keeps no samples."""
    with _opened(content, limits, "sound", field) as container:
        if not container.streams.audio:
            raise refusal(field, "has no sound in it")
        rate = int(container.streams.audio[0].codec_context.sample_rate)
        num_samples = 0
        for frame in container.decode(audio=0):
            num_samples += frame.samples
            _check_audio(rate, num_samples, limits, field)
        return rate, num_samples, _container_formats(container)


@contextmanager
def _opened(content: bytes, limits: MediaLimits, name: str, field: str) -> Iterator[Any]:
    try:
        with open_container(content, limits.max_pixels) as container:
            yield container
    except (av.FFmpegError, EOFError, ValueError) as error:
        raise refusal(field, f"is no {name} of a known format, or damaged: {first_line(error)}") from error


def _container_formats(container: Any) -> list[str]:
    """FFmpeg's names of the container format, the most common one first. It does not distinguish some, e.g. mov, mp4, m4a."""
    names: list[str] = container.format.name.split(",")
    return sorted(names, key=lambda name: name not in ("mp4", "matroska"))


def _video_header(content: bytes, limits: MediaLimits, field: str) -> _Read:
    with _opened(content, limits, "video", field) as container:
        if not container.streams.video:
            raise refusal(field, "has no pictures in it")
        stream = container.streams.video[0]
        width, height = stream.codec_context.width, stream.codec_context.height
        _check_pixels(width, height, limits, field)
        rate = stream.average_rate or stream.base_rate or stream.guessed_rate
        formats = _container_formats(container)
        # The header's number of frames may be wrong or missing.
        num_frames = 0
        for packet in container.demux(stream):
            num_frames += packet.size > 0
            if num_frames > MAX_VIDEO_FRAMES:
                raise refusal(field, f"has more than {MAX_VIDEO_FRAMES} frames", MAX_VIDEO_FRAMES)
    if num_frames < 1:
        raise refusal(field, "has no frames", 1, 0)
    if not rate:
        raise refusal(field, "does not say how many frames per second it has")
    header = VideoHeader(width, height, num_frames, float(rate))
    if header.duration_s > limits.max_video_s:
        seconds = f"{header.duration_s:.1f}"
        raise refusal(field, f"is {seconds} s long; at most {limits.max_video_s:g} s are taken", limits.max_video_s, seconds)
    return header, formats
