"""How finely an image is looked at, as options of the model's processor."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from triptych.errors import InvalidRequestError

from triptych_frontend.errors import check_one_of

DETAILS = ("auto", "low", "high")
#: Pixels of a coarse image, where a model takes any number: OpenAI's 512 x 512.
_LOW_PIXELS = 512 * 512
#: Options that cut an image into tiles, which are looked at beside the whole.
_TILES = ("do_image_splitting", "crop_to_patches", "do_pan_and_scan")


def detail_options(detail: str, known: Set[str], image_processor: Any, field: str) -> dict[str, Any]:
    """The options for an image. "auto" is the model's own; where a model takes any number of pixels, "high" is too.

    Args:
        known: the names of the processor's options.
        field: of the detail in the request.

    Raises:
        InvalidRequestError: the detail is not known, or the model looks at all images in the same way.
    """
    check_one_of(field, detail, DETAILS)
    if detail == "auto":
        return {}
    tiles = next((name for name in _TILES if name in known), None)
    if tiles is not None:
        return {tiles: detail == "high"}
    size = getattr(image_processor, "size", None)
    most, least = getattr(size, "longest_edge", None), getattr(size, "shortest_edge", None)
    if "max_pixels" in known and most is not None and least is not None:
        # Such processors call numbers of pixels edges.
        low = {"longest_edge": max(min(_LOW_PIXELS, most), least), "shortest_edge": least}
        return {} if detail == "high" else {"size": low}
    raise InvalidRequestError(
        f"this model looks at all images in the same detail; {field} may be auto; given: {detail!r}",
        field=field,
        limit="auto",
        value=detail,
    )
