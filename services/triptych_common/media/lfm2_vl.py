"""LFM2-VL's image processor without torch and torchvision, which transformers' own needs.

It computes what `Lfm2VlImageProcessor` of transformers does, with Pillow's interpolation, as transformers' image processors of
other families do without torchvision. A picture that is much larger than the model takes at once is cut into tiles of one size,
beside a small version of the whole. Each becomes a row of patches, with padding (NaFlex, SigLIP 2, arXiv:2502.14786).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from transformers import BatchFeature
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD, PILImageResampling, SizeDict
from transformers.processing_utils import ImagesKwargs

#: Pairs of patches that attend to each other, of all parts of a picture that is cut. The checkpoints' options make 12 million.
_MOST_PAIRS = 1 << 27


class Lfm2VlImageProcessorKwargs(ImagesKwargs, total=False):  # type: ignore[call-arg]
    """The options of transformers' own processor."""

    downsample_factor: int
    do_image_splitting: bool
    min_tiles: int
    max_tiles: int
    use_thumbnail: bool
    min_image_tokens: int
    max_image_tokens: int
    encoder_patch_size: int
    tile_size: int
    max_pixels_tolerance: float
    do_pad: bool
    return_row_col_info: bool


class Lfm2VlImageProcessor(PilBackend):
    """Pictures to patches.

    Returns for each tile of each picture:
        pixel_values: [patches, patch_size * patch_size * channels] float32; zeros behind the tile's own, up to the longest tile.
        pixel_attention_mask: [patches] int32, 1 for the patches that there are.
        spatial_shapes: [2] int64, rows and columns of patches.

    With `return_row_col_info` for each picture, too: image_rows and image_cols of its tiles, image_sizes [height, width] in pixels
    of the small version, or of the picture if it is not cut.

    Raises:
        ValueError: options contradict each other, or a picture is too thin a strip.
    """

    valid_kwargs = Lfm2VlImageProcessorKwargs
    model_input_names = ("pixel_values", "pixel_attention_mask", "spatial_shapes")
    downsample_factor = 2
    do_image_splitting = True
    min_tiles = 2
    max_tiles = 10
    use_thumbnail = True
    min_image_tokens = 64
    max_image_tokens = 256
    encoder_patch_size = 16
    tile_size = 512
    max_pixels_tolerance = 2.0
    do_resize = True
    size: ClassVar[dict[str, int]] = {"height": 512, "width": 512}  # not used
    resample = PILImageResampling.BILINEAR
    do_rescale = True
    rescale_factor = 1 / 255
    do_normalize = True
    do_pad = True
    return_row_col_info = False
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD

    def _preprocess(
        self,
        images: list[np.ndarray],
        *,
        resample: Any,
        downsample_factor: int,
        do_image_splitting: bool,
        min_tiles: int,
        max_tiles: int,
        use_thumbnail: bool,
        min_image_tokens: int,
        max_image_tokens: int,
        encoder_patch_size: int,
        tile_size: int,
        max_pixels_tolerance: float,
        return_row_col_info: bool,
        return_tensors: Any = None,
        **options: Any,
    ) -> BatchFeature:
        if do_image_splitting and min_tiles > max_tiles:
            raise ValueError("min_tiles must be less than or equal to max_tiles")
        if tile_size % (encoder_patch_size * downsample_factor):
            raise ValueError(f"tile_size must be a multiple of {encoder_patch_size * downsample_factor}; given: {tile_size}")
        splits = do_image_splitting and max_tiles > 1
        parts: list[np.ndarray] = []
        layouts = []
        for image in images:
            own: list[np.ndarray] = []
            height, width = image.shape[-2:]
            token = encoder_patch_size * downsample_factor
            whole = _size_of_whole(height, width, token, min_image_tokens, max_image_tokens)
            rows = columns = 1
            if splits and _is_too_large(height, width, token, encoder_patch_size, max_image_tokens * max_pixels_tolerance):
                rows, columns = _grid(height, width, min_tiles, max_tiles, tile_size)
            if rows * columns > 1:
                size = SizeDict(height=tile_size * rows, width=tile_size * columns)
                own += _tiles(self.resize(image, size, resample=resample), rows, columns)
            if rows * columns == 1 or use_thumbnail:
                own.append(self.resize(image, SizeDict(height=whole[0], width=whole[1]), resample=resample))
            _check_attention(own, encoder_patch_size)
            parts += own
            layouts.append((rows, columns, whole))
        patches_of_tile = (tile_size // encoder_patch_size) ** 2 if do_image_splitting else 0
        most = max(max_image_tokens * downsample_factor**2, patches_of_tile)
        for height, width in (part.shape[-2:] for part in parts):
            if height * width > most * encoder_patch_size**2:  # a thin strip; transformers' processor would make wrong masks
                raise ValueError(f"its sides differ too much: it would be made {width}x{height}, more than the tower takes")
        data = self._inputs(parts, encoder_patch_size, options)
        if return_row_col_info:
            data["image_rows"] = [rows for rows, _, _ in layouts]
            data["image_cols"] = [columns for _, columns, _ in layouts]
            data["image_sizes"] = [list(whole) for _, _, whole in layouts]
        return BatchFeature(data=data, tensor_type=return_tensors)

    def _inputs(self, parts: list[np.ndarray], patch_size: int, options: dict[str, Any]) -> dict[str, Any]:
        """The tower's inputs. Parts are padded to the longest one only, because the tower computes padding, too."""
        values, masks, shapes = [], [], []
        longest = _num_patches(parts, patch_size)
        for part in parts:
            pixels = self.rescale(part, options["rescale_factor"]) if options["do_rescale"] else part
            if options["do_normalize"]:
                pixels = self.normalize(pixels, options["image_mean"], options["image_std"])
            patches = _patches(pixels, patch_size)
            padding = longest - len(patches)
            values.append(np.pad(patches.astype(np.float32, copy=False), ((0, padding), (0, 0))))
            masks.append(np.repeat(np.array([1, 0], np.int32), [len(patches), padding]))
            shapes.append([part.shape[-2] // patch_size, part.shape[-1] // patch_size])
        return {
            "pixel_values": np.stack(values),
            "pixel_attention_mask": np.stack(masks),
            "spatial_shapes": np.array(shapes, np.int64),
        }


class Lfm2VlImageSizes(Lfm2VlImageProcessor):
    """Computes only how a picture is cut, for processes that need no pixels."""

    def _inputs(self, parts: list[np.ndarray], patch_size: int, options: dict[str, Any]) -> dict[str, Any]:
        return {}


def _check_attention(parts: list[np.ndarray], patch_size: int) -> None:
    """Refuse parts of a picture that would take too much memory together.

    Where some are padded, the tower has a mask of a number for each two patches of each part.
    """
    longest = _num_patches(parts, patch_size)
    if len(parts) > 1 and len(parts) * longest**2 > _MOST_PAIRS:
        raise ValueError(f"it would be {len(parts)} parts of up to {longest} patches, too many to compute together")


def _num_patches(parts: list[np.ndarray], patch_size: int) -> int:
    """Of the longest part."""
    return max(math.prod(part.shape[-2:]) for part in parts) // patch_size**2


def _size_of_whole(height: int, width: int, token: int, min_tokens: int, max_tokens: int) -> tuple[int, int]:
    """Height and width to which a picture is resized as a whole: `smart_resize` of transformers' processor.

    token: edge of what becomes a token, in pixels.
    """
    new_height, new_width = (max(token, round(edge / token) * token) for edge in (height, width))
    if new_height * new_width > max_tokens * token**2:
        scale = math.sqrt(height * width / (max_tokens * token**2))
        new_height, new_width = (max(token, math.floor(edge / scale / token) * token) for edge in (height, width))
    elif new_height * new_width < min_tokens * token**2:
        scale = math.sqrt(min_tokens * token**2 / (height * width))
        new_height, new_width = (math.ceil(edge * scale / token) * token for edge in (height, width))
    return new_height, new_width


def _is_too_large(height: int, width: int, token: int, patch_size: int, most_tokens: float) -> bool:
    """Whether a picture is cut into tiles."""
    area = math.prod(max(patch_size, round(edge / token) * token) for edge in (height, width))
    return area > most_tokens * token**2


def _grid(height: int, width: int, min_tiles: int, max_tiles: int, tile_size: int) -> tuple[int, int]:
    """Rows and columns of tiles: the shape that is nearest to the picture's, as `find_closest_aspect_ratio` chooses it."""
    best, least, shape = (1, 1), math.inf, width / height
    for columns, rows in _shapes(min_tiles, max_tiles):
        difference = abs(shape - columns / rows)
        if difference < least:
            best, least = (columns, rows), difference
        elif difference == least and width * height > 0.5 * tile_size * tile_size * columns * rows:
            best = columns, rows
    return best[1], best[0]


@lru_cache(maxsize=256)
def _shapes(min_tiles: int, max_tiles: int) -> list[tuple[int, int]]:
    """Columns and rows, in the order in which transformers tries them: where two are as near, it matters."""
    shapes = [
        (columns, rows)
        for number in range(min_tiles, max_tiles + 1)
        for columns in range(1, number + 1)
        for rows in range(1, number + 1)
        if min_tiles <= columns * rows <= max_tiles
    ]
    return sorted(set(shapes), key=lambda shape: shape[0] * shape[1])


def _tiles(image: np.ndarray, rows: int, columns: int) -> list[np.ndarray]:
    """The tiles of [channels, height, width], row by row."""
    return [tile for row in np.split(image, rows, axis=1) for tile in np.split(row, columns, axis=2)]


def _patches(image: np.ndarray, size: int) -> np.ndarray:
    """[channels, height, width] -> [patches, size * size * channels], row by row."""
    channels, height, width = image.shape
    cut = image.reshape(channels, height // size, size, width // size, size)
    return cut.transpose(1, 3, 2, 4, 0).reshape(-1, size * size * channels)
