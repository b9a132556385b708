"""How much of a media file is taken: checked on what headers say before decoding, and on what comes while decoding."""

from __future__ import annotations

from dataclasses import dataclass

from triptych_common.errors import InvalidRequestError


@dataclass(frozen=True)
class MediaLimits:
    """Largest media that are decoded.

    Attributes:
        max_bytes: of a file.
        max_pixels: of a picture, or of one frame of a video.
        max_audio_s, max_video_s: duration in seconds.
        max_video_pixels: of all frames that are taken from a video together.
    """

    max_bytes: int
    max_pixels: int
    max_audio_s: float
    max_video_s: float
    max_video_pixels: int


def bad_media(kind: str, what: str, limit: object = "", value: object = "") -> InvalidRequestError:
    """The error for a file that cannot be used. `what` continues a sentence that begins with the kind."""
    return InvalidRequestError(f"the {kind} {what}", field="data", limit=limit, value=value)


def check_size(kind: str, data: bytes, limits: MediaLimits) -> None:
    """Raises InvalidRequestError for an empty file and for one of too many bytes."""
    if not data:
        raise bad_media(kind, "file is empty (0 bytes)", value=0)
    if len(data) > limits.max_bytes:
        raise bad_media(kind, f"file has {len(data)} bytes; at most {limits.max_bytes} are taken", limits.max_bytes, len(data))


def check_pixels(kind: str, width: int, height: int, limits: MediaLimits) -> None:
    """Raises InvalidRequestError for no pixels and for too many."""
    if width < 1 or height < 1:
        raise bad_media(kind, f"has no pixels ({width}x{height})", value=f"{width}x{height}")
    if width * height > limits.max_pixels:
        raise bad_media(
            kind,
            f"is {width}x{height}, {width * height} pixels; at most {limits.max_pixels} are taken",
            limits.max_pixels,
            width * height,
        )
