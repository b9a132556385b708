"""Size limits of media: one place for the frontend, which reads headers, and the encoder, which decodes.

Both have the limits as settings. They check them against the headers before they decode, and against the data while they decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field

from triptych_common.rpc.channels import MAX_MESSAGE_BYTES
from triptych_common.settings import GrpcServiceSettings, parse_bytes

#: Supported image formats; Pillow reads MPO as JPEG. Other formats of Pillow start programs (EPS), decode their content when they
#: are opened (ICO), or are not useful here.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
#: Samples per second.
MIN_SAMPLING_RATE, MAX_SAMPLING_RATE = 1_000, 768_000
#: Most frames of a video. To count more would take seconds.
MAX_VIDEO_FRAMES = 200_000
#: Above this rate the longest duration shrinks, so that the number of samples does not grow.
_FULL_LENGTH_RATE = 96_000


@dataclass(frozen=True)
class MediaLimits:
    """Largest media that a service accepts.

    Attributes:
        max_bytes: size of a file.
        max_pixels: pixels of an image, before and after resizing, or of one frame of a video.
        max_audio_s, max_video_s: duration in seconds.
        max_video_pixels: pixels of all sampled frames of a video together.
        max_decode_s: wall time of decoding a sound or a video.
    """

    max_bytes: int
    max_pixels: int
    max_audio_s: float
    max_video_s: float
    max_video_pixels: int
    max_decode_s: float = 60.0

    def max_samples(self, rate: int) -> float:
        """Most samples per channel of audio at this sampling rate."""
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
        """The limits among these settings."""
        return MediaLimits(
            max_bytes=self.max_media_bytes,
            max_pixels=self.max_image_pixels,
            max_audio_s=self.max_audio_s,
            max_video_s=self.max_video_s,
            max_video_pixels=self.max_video_pixels,
        )
