"""The processor options that a request may send: which names are allowed, and how large their numbers may be.

The frontend refuses invalid options before it sends anything. The encoder checks again because it trusts no client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triptych.errors import InvalidRequestError

#: The services decide how arrays are passed on, and the weights fix the patch size.
NOT_FOR_REQUESTS = frozenset(
    {
        "return_tensors",
        "return_metadata",
        "device",
        "data_format",
        "input_data_format",
        "disable_grouping",
        "video_metadata",
        "patch_size",
        "merge_size",
        "temporal_patch_size",
        "encoder_patch_size",
        "downsample_factor",
        "return_row_col_info",
    }
)
#: Smaller edges would cut an image into too many tiles.
_MIN_EDGE = 8
_MAX_EDGE = 4096
_MAX_TILES = 64
#: Of one image. The weights of the families that have this option were trained with 256.
_MAX_IMAGE_TOKENS = 4096


def check_option_numbers(options: Mapping[str, Any], max_pixels: int, field: str) -> None:
    """Raise InvalidRequestError for a number, at any depth, that asks for images that are too large or too many.

    Args:
        max_pixels: most pixels of an image. Some processors call a number of pixels an edge.
        field: field of the request, for the error.
    """
    for name, value in options.items():
        _check_numbers(name, value, max_pixels, field)


def _check_numbers(name: str, value: Any, max_pixels: int, field: str) -> None:
    if isinstance(value, Mapping):
        for inner, number in value.items():
            _check_numbers(f"{name}.{inner}", number, max_pixels, field)
    elif isinstance(value, list):
        for number in value:
            _check_numbers(name, number, max_pixels, field)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        least, most = _range(name, max_pixels)
        if not least <= value <= most:
            message = f"{field}: {name} must be in [{least}, {most}]; given: {value}"
            raise InvalidRequestError(message, field=field, limit=most, value=value)


def _range(name: str, max_pixels: int) -> tuple[int, int]:
    if name.endswith(("patches", "num_crops", "_tiles")):
        return 0, _MAX_TILES
    if name.endswith("image_tokens"):
        return 1, _MAX_IMAGE_TOKENS
    if name.endswith(("height", "width", "pinpoints", "tile_size")):
        return _MIN_EDGE, _MAX_EDGE
    return (_MIN_EDGE if name.endswith("edge") else 0), max_pixels
