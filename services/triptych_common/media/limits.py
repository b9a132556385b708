"""How large media may be: one place for the limits of who reads headers (frontend) and of who decodes (encoder).

Both have them as settings. They are checked on what headers say before anything is decoded, and on what comes while decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field

from triptych_common.rpc.channels import MAX_MESSAGE_BYTES
from triptych_common.settings import GrpcServiceSettings, parse_bytes

#: Formats of pictures; MPO comes as JPEG. Others that Pillow knows start programs (EPS), decode whatever they
#: hold while they are opened (ICO), or have no place here.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
#: Samples per second.
MIN_SAMPLING_RATE, MAX_SAMPLING_RATE = 1_000, 768_000
#: Frames of a video; counting more would take seconds.
MAX_VIDEO_FRAMES = 200_000
#: Sounds of a higher rate may be shorter, so that they have no more samples.
_FULL_LENGTH_RATE = 96_000


@dataclass(frozen=True)
class MediaLimits:
    """Largest media that are taken.

    Attributes:
        max_bytes: of a file.
        max_pixels: of a picture, before and after resizing, or of one frame of a video.
        max_audio_s, max_video_s: duration in seconds.
        max_video_pixels: of all frames that are taken from a video together.
        max_decode_s: wall time of decoding a sound or a video.
    """

    max_bytes: int
    max_pixels: int
    max_audio_s: float
    max_video_s: float
    max_video_pixels: int
    max_decode_s: float = 60.0

    def max_samples(self, rate: int) -> float:
        """Samples per channel of a sound with so many per second."""
        return self.max_audio_s * min(rate, _FULL_LENGTH_RATE)


class MediaLimitSettings(GrpcServiceSettings):
    """Settings of a service that reads media files."""

    max_media_bytes: Annotated[
        int,
        BeforeValidator(parse_bytes),
        Field(ge=1, le=MAX_MESSAGE_BYTES // 2, description="Largest media file, in bytes, e.g. 20M."),
    ] = 20 << 20
    max_image_pixels: Annotated[
        int, Field(ge=1, description="Most pixels of an image, before and after resizing, or of one video frame.")
    ] = 50_000_000
    max_audio_s: Annotated[float, Field(gt=0, description="Longest audio, in seconds; less above 96,000 samples per second.")] = (
        600.0
    )
    max_video_s: Annotated[float, Field(gt=0, description="Longest video, in seconds.")] = 600.0
    max_video_pixels: Annotated[int, Field(ge=1, description="Most pixels of all frames together that are taken from a video.")] = (
        256_000_000
    )

    @property
    def media_limits(self) -> MediaLimits:
        """The same, for those who check."""
        return MediaLimits(
            max_bytes=self.max_media_bytes,
            max_pixels=self.max_image_pixels,
            max_audio_s=self.max_audio_s,
            max_video_s=self.max_video_s,
            max_video_pixels=self.max_video_pixels,
        )
