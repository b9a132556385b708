"""Which part of a video or an audio file the model gets. Placeholder counting and decoding share this code, so they agree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Frames per second to sample when neither checkpoint nor request sets it. The Qwen-VL models were trained with this value.
_DEFAULT_FPS = 2.0
#: Options of a request that change which frames are sampled.
SAMPLING_OPTIONS = frozenset({"fps", "num_frames", "min_frames", "max_frames", "do_sample_frames"})
#: Options that a request may give for a video.
VIDEO_OPTIONS = SAMPLING_OPTIONS | {"size", "min_pixels", "max_pixels"}


def resampled_length(num_samples: int, sampling_rate: int, target_rate: int) -> int:
    """Samples per channel after resampling, rounded up as polyphase resamplers do (scipy, torchaudio, soxr by its ceiling)."""
    return -(-num_samples * target_rate // sampling_rate)


def check_made_pixels(height: int, width: int, max_pixels: int) -> None:
    """Raise ValueError for an image that a processor would make too large in an intermediate step.

    A resize by the shorter edge turns a long thin strip of a few pixels into an arbitrarily large image. So does padding to a
    square.
    """
    if height * width > max_pixels:
        raise ValueError(f"it would be made {width}x{height}, {width * height} pixels; at most {max_pixels} are made")


def resized(height: int, width: int, size: Any) -> tuple[int, int]:
    """Height and width after a resize as transformers' backends do it, accurate to one pixel.

    Args:
        size: transformers' SizeDict.
    """
    if size.shortest_edge:
        scale = size.shortest_edge / min(height, width)
        if size.longest_edge:
            scale = min(scale, size.longest_edge / max(height, width))
    elif size.max_height and size.max_width:
        scale = min(size.max_height / height, size.max_width / width)
    elif size.height and size.width:
        return int(size.height), int(size.width)
    else:
        scale = 1.0
    return round(height * scale), round(width * scale)


@dataclass(frozen=True)
class FrameSampling:
    """Which frames of a video are sampled. This matches the model family's own video processor in transformers.

    Attributes:
        is_linspace: evenly spaced from the first frame to the last (Qwen3-VL); else in equal steps from the first (Qwen2-VL).
        fps: frames per second to sample; ignored when num_frames is set.
    """

    is_linspace: bool
    fps: float | None
    num_frames: int | None
    min_frames: int
    max_frames: int
    temporal_patch_size: int
    do_sample_frames: bool = True

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> FrameSampling:
        """From a checkpoint's video processor configuration and a request's options, which take precedence.

        Raises:
            ValueError: the options contradict each other or are out of range. The message names the option.
        """
        if options.get("fps") is not None and options.get("num_frames") is not None:
            raise ValueError("fps and num_frames exclude each other")
        merged = {**config, **{name: value for name, value in options.items() if value is not None}}
        num_frames, fps = merged.get("num_frames"), merged.get("fps")
        if options.get("fps") is not None:
            num_frames = None
        for name in ("fps", "num_frames", "min_frames", "max_frames"):
            value = merged.get(name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (is_number and 0 < value <= 1e6):
                raise ValueError(f"{name} must be a number above 0; given: {value!r}")
        is_linspace = "Qwen3" in str(merged.get("video_processor_type", ""))
        return cls(
            is_linspace=is_linspace,
            fps=float(fps) if fps is not None else _DEFAULT_FPS,
            num_frames=int(num_frames) if num_frames is not None else None,
            min_frames=int(merged.get("min_frames") or 4),
            max_frames=int(merged.get("max_frames") or 768),
            temporal_patch_size=int(merged.get("temporal_patch_size") or 2),
            do_sample_frames=bool(options.get("do_sample_frames", True)),
        )

    def indices(self, total_num_frames: int, video_fps: float) -> np.ndarray:
        """Indices of the frames, ascending, shape (num_sampled,), int64; may be fewer than temporal_patch_size.

        Follows `sample_frames` of Qwen2VLVideoProcessor and Qwen3VLVideoProcessor in transformers.

        Args:
            total_num_frames: number of frames in the video, at least 1.
            video_fps: frames per second of the video.
        """
        if not self.do_sample_frames:
            return np.arange(total_num_frames)
        if self.is_linspace:
            count = self.num_frames
            if count is None:
                count = int(total_num_frames / video_fps * (self.fps or _DEFAULT_FPS))
                count = min(max(count, self.min_frames), self.max_frames)
            return np.linspace(0, total_num_frames - 1, min(count, total_num_frames)).round().astype(np.int64)
        step = self.temporal_patch_size
        if self.num_frames is not None:
            # A short video has fewer frames than requested. transformers raises an error; we take what there is.
            num_frames = min(round(self.num_frames / step), total_num_frames // step) * step
        else:
            max_frames = math.floor(min(self.max_frames, total_num_frames) / step) * step
            wanted = total_num_frames / video_fps * (self.fps or _DEFAULT_FPS)
            num_frames = math.floor(min(max(wanted, self.min_frames), max_frames, total_num_frames) / step) * step
        if num_frames < 1:
            return np.arange(total_num_frames)
        # Same as torch.arange(0, total, total / num), but rounding never adds an extra index.
        return np.minimum((np.arange(num_frames) * (total_num_frames / num_frames)).astype(np.int64), total_num_frames - 1)
