"""Videos: from a raw file to the frames that the model family samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import av
import numpy as np
from triptych_common.media.container import open_container
from triptych_common.media.geometry import FrameSampling
from triptych_common.media.limits import MAX_VIDEO_FRAMES, MediaLimits

from triptych_encoder.media.limits import DecodeClock, bad_media, check_pixels, check_size


@dataclass(frozen=True)
class SampledVideo:
    """Frames of a video, and their indices in it."""

    frames: np.ndarray  # [num_frames, height, width, 3] uint8
    indices: np.ndarray  # [num_frames] int64, ascending
    total_num_frames: int
    fps: float  # of the whole video


def decode_video(data: bytes, sampling: FrameSampling, limits: MediaLimits) -> SampledVideo:
    """The sampled frames. Codecs need the frames between them too; these are decoded and dropped.

    Raises:
        InvalidRequestError: the file is not a video, has no frames, is damaged, or exceeds a limit.
    """
    check_size("video", data, limits)
    try:
        total, fps, width, height = _probe(data, limits)
        check_pixels("video", width, height, limits)
        if total < 1:
            raise bad_media("video", "has no frames", value=0)
        if total > limits.max_video_s * fps:
            seconds = total / fps
            raise bad_media(
                "video",
                f"is {seconds:.1f} s long; at most {limits.max_video_s:g} s are taken",
                limits.max_video_s,
                f"{seconds:.1f}",
            )
        indices = sampling.indices(total, fps)
        num_pixels = len(indices) * width * height
        if num_pixels > limits.max_video_pixels:
            raise bad_media(
                "video",
                f"has {num_pixels} pixels in the {len(indices)} frames that are taken ({width}x{height}); at most "
                f"{limits.max_video_pixels} are; a lower fps takes fewer frames",
                limits.max_video_pixels,
                num_pixels,
            )
        return SampledVideo(_decode(data, indices, width, height, limits), indices, total, fps)
    except (av.FFmpegError, EOFError) as error:
        raise bad_media("video", f"is of no known format, or damaged: {str(error).splitlines()[0]}") from error


def _open(data: bytes, limits: MediaLimits) -> tuple[Any, Any]:
    container = open_container(data, limits.max_pixels)
    if not container.streams.video:
        container.close()
        raise bad_media("video", "file has no picture track")
    stream = container.streams.video[0]
    # One thread, because several videos are decoded at once and an engine may use the same cores.
    stream.codec_context.thread_count = 1
    return container, stream


def _probe(data: bytes, limits: MediaLimits) -> tuple[int, float, int, int]:
    """Number of frames, frames per second, width, height. Counts packets instead of trusting the header."""
    container, stream = _open(data, limits)
    with container:
        rate = stream.average_rate or stream.base_rate or stream.guessed_rate
        if not rate:
            raise bad_media("video", "does not say how many frames per second it has")
        total = 0
        for packet in container.demux(stream):
            total += packet.size > 0
            if total > MAX_VIDEO_FRAMES:
                raise bad_media("video", f"has more than {MAX_VIDEO_FRAMES} frames", MAX_VIDEO_FRAMES)
        return total, float(rate), stream.codec_context.width, stream.codec_context.height


def _decode(data: bytes, indices: np.ndarray, width: int, height: int, limits: MediaLimits) -> np.ndarray:
    frames = np.empty((len(indices), height, width, 3), np.uint8)
    taken, clock = 0, DecodeClock("video", limits)
    container, stream = _open(data, limits)
    with container:
        for index, frame in enumerate(container.decode(stream)):
            if taken == len(indices):
                break
            clock.check()
            if index == indices[taken]:
                # If the stream changes its size, all frames still get the first size.
                image = frame.to_ndarray(format="rgb24", width=width, height=height)
                while taken < len(indices) and indices[taken] == index:
                    frames[taken] = image
                    taken += 1
    if taken < len(indices):
        raise bad_media("video", f"ends after {taken} of the {len(indices)} frames that are taken: it is truncated or damaged")
    return frames
