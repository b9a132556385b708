"""transformers' own image processor of LFM2-VL, whose module needs torchvision.

What it takes of torchvision is replaced: a resize by Pillow's, and the normalisation. Sizes, tiles, patches and padding are
transformers'.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from PIL.Image import Resampling
from transformers import image_processing_backends
from transformers.image_transforms import resize
from transformers.image_utils import ChannelDimension


def _resize(images: torch.Tensor, size: tuple[int, int], **options: Any) -> torch.Tensor:
    """[..., channels, height, width] of bytes."""
    first = {"data_format": ChannelDimension.FIRST, "input_data_format": ChannelDimension.FIRST}
    new = [resize(image.numpy(), size=size, resample=Resampling.BILINEAR, **first) for image in images.flatten(0, -4)]
    return torch.stack([torch.from_numpy(image) for image in new])


def _normalize(images: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return (images - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)


@functools.cache
def _processor_class() -> Any:
    modes = types.SimpleNamespace(BILINEAR=Resampling.BILINEAR, BICUBIC=Resampling.BICUBIC, LANCZOS=Resampling.LANCZOS)
    functional: Any = types.ModuleType("functional")
    functional.InterpolationMode, functional.resize, functional.normalize = modes, _resize, _normalize
    functional.grayscale_to_rgb = lambda image: image
    v2: Any = types.ModuleType("torchvision.transforms.v2")
    v2.functional = functional
    parents = {name: types.ModuleType(name) for name in ("torchvision", "torchvision.transforms")}
    with mock.patch.dict(sys.modules, {**parents, "torchvision.transforms.v2": v2}):
        module: Any = importlib.import_module("transformers.models.lfm2_vl.image_processing_lfm2_vl")
    pad = module.pad_along_first_dim

    def strict_pad(images: torch.Tensor, target_length: int) -> tuple[torch.Tensor, torch.Tensor]:
        if images.shape[1] > target_length:
            raise ValueError("a thin strip has more patches than its mask")
        return pad(images, target_length)

    module.pad_along_first_dim = strict_pad
    image_processing_backends.tvF = functional  # type: ignore[attr-defined]
    image_processing_backends.pil_torch_interpolation_mapping = {mode: mode for mode in Resampling}  # type: ignore[assignment]
    return module.Lfm2VlImageProcessor


def reference_image_processor(path: Path) -> Any:
    """That of a checkpoint."""
    return _processor_class().from_pretrained(path)
