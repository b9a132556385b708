"""Runs transformers' processors on sizes only. The resulting sizes are exact, and no pixel or sample is computed.

The size of an image determines its number of tokens, by rules for rounding, tiling and padding that differ between families.
Instead of repeating these rules, this module runs the family's own code on arrays of stride 0. Such an array takes 4 bytes,
whatever its shape. The basic operations (resize, normalize, spectrogram) are replaced by operations that also return such arrays.
Any other operation of a family really runs, on zeros: slower, but with the same sizes.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from triptych_common.media.geometry import check_made_pixels, resized


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """A read-only array of zeros that takes the memory of one element."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def sized_image_processor(processor: Any, max_pixels: int) -> Any:
    """The same image processor (of transformers' PIL backend), which then works on sizes only.

    Args:
        max_pixels: most pixels of an image that it may create. Its methods raise ValueError for larger ones.

    Raises:
        ValueError: the processor does not use that backend.
    """
    from transformers.image_processing_backends import PilBackend

    family = type(processor)
    if not issubclass(family, PilBackend):
        raise ValueError(f"{family.__name__} does not run without torch")
    # In Python's method resolution order, the backend below comes between the family's own methods and the operations that they
    # call.
    bases = (family, _sized_backend(PilBackend, max_pixels))
    methods = {}
    if hasattr(family, "pad_to_square"):

        def pad_to_square(self: Any, image: np.ndarray, *args: Any, **kwargs: Any) -> np.ndarray:
            edge = max(image.shape[-2:])
            check_made_pixels(edge, edge, max_pixels)
            return zeros(image.shape[0], edge, edge, dtype=image.dtype)

        methods["pad_to_square"] = pad_to_square
    processor.__class__ = type(family.__name__, (_GridOnly, *bases) if hasattr(family, "patchify") else bases, methods)
    return processor


class _GridOnly:
    """Computes only the grid, for the image processors of Qwen2-VL and GLM-4V. Their patches would be real arrays of up to hundreds
    of megabytes."""

    def _preprocess(
        self: Any,
        images: list[np.ndarray],
        do_resize: bool,
        size: Any,
        resample: Any,
        patch_size: int,
        merge_size: int,
        temporal_patch_size: int,
        **_: Any,
    ) -> dict[str, np.ndarray]:
        if do_resize:
            factors = {"factor": patch_size * merge_size}
            if "temporal_factor" in inspect.signature(self.resize).parameters:
                factors["temporal_factor"] = temporal_patch_size
            images = [self.resize(image, size=size, resample=resample, **factors) for image in images]
        grids = [(1, image.shape[-2] // patch_size, image.shape[-1] // patch_size) for image in images]
        return {"image_grid_thw": np.array(grids, np.int64)}


def _sized_backend(backend: type, max_pixels: int) -> type:
    from transformers.image_transforms import get_resize_output_image_size, get_size_with_aspect_ratio
    from transformers.image_utils import ChannelDimension, get_image_size_for_max_height_width

    class SizedBackend(backend):
        """The operations of the PIL backend, on shapes. Images are (channels, height, width)."""

        def process_image(self, image: np.ndarray, *args: Any, **kwargs: Any) -> np.ndarray:
            return image

        def resize(self, image: np.ndarray, size: Any, *args: Any, **kwargs: Any) -> np.ndarray:
            height, width = image.shape[-2:]
            check_made_pixels(*resized(height, width, size), max_pixels)
            if size.shortest_edge and size.longest_edge:
                new_size = get_size_with_aspect_ratio((height, width), size.shortest_edge, size.longest_edge)
            elif size.shortest_edge:
                first = ChannelDimension.FIRST
                new_size = get_resize_output_image_size(
                    image, size=size.shortest_edge, default_to_square=False, input_data_format=first
                )
            elif size.max_height and size.max_width:
                new_size = get_image_size_for_max_height_width((height, width), size.max_height, size.max_width)
            elif size.height and size.width:
                new_size = (size.height, size.width)
            else:
                raise ValueError(f"no image can be resized to {size.height}x{size.width}")
            return zeros(image.shape[0], *new_size, dtype=image.dtype)

        def rescale(self, image: np.ndarray, *args: Any, **kwargs: Any) -> np.ndarray:
            return zeros(*image.shape)

        normalize = rescale

    return SizedBackend


def sized_feature_extractor(extractor: Any) -> Any:
    """The same feature extractor, without spectrograms. Lengths and masks remain exact."""
    family = type(extractor)

    def spectrogram(self: Any, waveform: np.ndarray, *args: Any, **kwargs: Any) -> np.ndarray:
        return zeros(len(waveform), self.feature_size, waveform.shape[-1] // self.hop_length)

    methods = {"_np_extract_fbank_features": spectrogram, "_torch_extract_fbank_features": spectrogram}
    extractor.__class__ = type(family.__name__, (family,), methods)
    return extractor
