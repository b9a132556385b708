"""Qwen's video preprocessing without torchvision: from sampled frames to patches, like transformers' own video processors.

It follows `Qwen2VLVideoProcessor` and `Qwen3VLVideoProcessor` in transformers. It resizes with torch's bicubic interpolation of
bytes, which torchvision also calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from transformers import BatchFeature
from transformers.video_processing_utils import VideoProcessorMixin

#: Largest ratio of the longer to the shorter side that the families accept.
MAX_ASPECT_RATIO = 200
_QWEN2_DEFAULTS: dict[str, Any] = {
    "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "patch_size": 14,
    "max_video_tokens": 128000,
}
_QWEN3_DEFAULTS: dict[str, Any] = {
    "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "patch_size": 16,
    "max_video_tokens": 768,
}
_DEFAULTS = {"temporal_patch_size": 2, "merge_size": 2, "rescale_factor": 1 / 255, "cap_pixels_per_frame": False}


class QwenVideoProcessor(VideoProcessorMixin):
    """Replaces transformers' video processor. Its input frames are already sampled.

    Args:
        config: video_preprocessor_config.json, or its equivalent in the checkpoint.
        budget_per_video: the pixel limit is for the whole video (Qwen3-VL), not for one frame (Qwen2-VL).
    """

    def __init__(self, config: Mapping[str, Any], budget_per_video: bool) -> None:
        self._config = {**(_QWEN3_DEFAULTS if budget_per_video else _QWEN2_DEFAULTS), **_DEFAULTS, **config}
        self._budget_per_video = budget_per_video
        self.patch_size: int = self._config["patch_size"]
        self.merge_size: int = self._config["merge_size"]
        self.temporal_patch_size: int = self._config["temporal_patch_size"]

    def __call__(self, videos: list[np.ndarray], video_metadata: Any = None, size: Any = None, **options: Any) -> BatchFeature:
        """Patches of the videos, one after the other.

        Args:
            videos: each [num_frames, height, width, 3] uint8.
            size: {"shortest_edge": ..., "longest_edge": ...}, in pixels; by default the checkpoint's.

        Returns:
            pixel_values_videos [num_patches, patch_dim] float32, video_grid_thw [num_videos, 3] int64, video_metadata.
        """
        size = dict(size or self._config["size"])
        size["shortest_edge"] = options.get("min_pixels") or size["shortest_edge"]
        size["longest_edge"] = options.get("max_pixels") or size["longest_edge"]
        patches, grids = [], []
        for video in videos:
            frames = torch.from_numpy(video).permute(0, 3, 1, 2)
            height, width = self._resized(
                len(frames), frames.shape[2], frames.shape[3], size["shortest_edge"], size["longest_edge"]
            )
            if frames.shape[2:] != (height, width):
                frames = torch.nn.functional.interpolate(frames, (height, width), mode="bicubic", antialias=True)
            flat, grid = self._patchify(self._normalize(frames))
            patches.append(flat)
            grids.append(grid)
        return BatchFeature(
            {
                "pixel_values_videos": torch.cat(patches),
                "video_grid_thw": torch.tensor(grids, dtype=torch.int64),
                "video_metadata": video_metadata,
            }
        )

    def _resized(self, num_frames: int, height: int, width: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
        """Height and width: multiples of a merged patch, within the pixel limit, with about the same aspect ratio."""
        factor, frame_step = self.patch_size * self.merge_size, self.temporal_patch_size
        capped = self._config["cap_pixels_per_frame"]
        if self._budget_per_video:
            if capped:
                frame_cap = min(self._config["max_video_tokens"] * factor * factor, max_pixels // num_frames)
                max_pixels = max(frame_cap, int(min_pixels * 1.05)) * num_frames
            if height < factor or width < factor:
                scale = max(factor / height, factor / width)
                height, width = int(height * scale), int(width * scale)
            weight, rounded_weight = num_frames, round(num_frames / frame_step) * frame_step
        else:
            if capped:
                total = int(self._config["max_video_tokens"] * factor * factor * 0.9)
                max_pixels = max(min(max_pixels, total * frame_step // num_frames), int(min_pixels * 1.05))
            weight = rounded_weight = 1
        if max(height, width) / min(height, width) > MAX_ASPECT_RATIO:
            raise ValueError(
                f"absolute aspect ratio must be smaller than {MAX_ASPECT_RATIO}, got {max(height, width) / min(height, width)}"
            )
        new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
        if rounded_weight * new_height * new_width > max_pixels:
            beta = math.sqrt(weight * height * width / max_pixels)
            new_height = max(factor, math.floor(height / beta / factor) * factor)
            new_width = max(factor, math.floor(width / beta / factor) * factor)
        elif rounded_weight * new_height * new_width < min_pixels:
            beta = math.sqrt(min_pixels / (weight * height * width))
            new_height = math.ceil(height * beta / factor) * factor
            new_width = math.ceil(width * beta / factor) * factor
        return new_height, new_width

    def _normalize(self, frames: torch.Tensor) -> torch.Tensor:
        scale = 1 / self._config["rescale_factor"]
        mean = torch.tensor(self._config["image_mean"])[:, None, None] * scale
        std = torch.tensor(self._config["image_std"])[:, None, None] * scale
        return (frames.float() - mean) / std

    def _patchify(self, frames: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        step, merge, patch = self.temporal_patch_size, self.merge_size, self.patch_size
        if missing := -len(frames) % step:
            frames = torch.cat([frames, frames[-1:].expand(missing, -1, -1, -1)])
        channels, height, width = frames.shape[1:]
        grid = [len(frames) // step, height // patch, width // patch]
        tiles = frames.view(grid[0], step, channels, grid[1] // merge, merge, patch, grid[2] // merge, merge, patch)
        return tiles.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(math.prod(grid), channels * step * patch * patch), grid
