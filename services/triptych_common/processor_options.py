"""Numbers in processor options of requests: how much a client may ask for, beside the limits on its media."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triptych_common.errors import InvalidRequestError

#: Edges below this cut a picture into more tiles than make sense.
_MIN_EDGE = 8
_MAX_EDGE = 4096
_MAX_TILES = 64


def check_option_numbers(options: Mapping[str, Any], max_pixels: int, field: str) -> None:
    """Raise InvalidRequestError for a number, at any depth, that asks for too large or too many pictures.

    Args:
        max_pixels: most pixels of a picture; some processors call a number of pixels an edge.
        field: of the request, for the error.
    """
    for name, value in options.items():
        if isinstance(value, dict):
            check_option_numbers({f"{name}.{inner}": number for inner, number in value.items()}, max_pixels, field)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            least, most = _range(name, max_pixels)
            if not least <= value <= most:
                message = f"{field}: {name} must be in [{least}, {most}]; given: {value}"
                raise InvalidRequestError(message, field=field, limit=most, value=value)


def _range(name: str, max_pixels: int) -> tuple[int, int]:
    if name.endswith(("patches", "num_crops")):
        return 0, _MAX_TILES
    if name.endswith(("height", "width")):
        return _MIN_EDGE, _MAX_EDGE
    return (_MIN_EDGE if name.endswith("edge") else 0), max_pixels
