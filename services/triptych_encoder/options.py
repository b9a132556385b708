"""Options of the model's processor that a request sends along: which are taken, and how large their numbers may be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from triptych_common.errors import InvalidRequestError

from triptych_encoder.media.limits import MediaLimits

FIELD = "processor_options_json"
#: Options that choose representations or places rather than how a picture is seen.
_NOT_FOR_REQUESTS = frozenset(
    {"return_tensors", "device", "data_format", "input_data_format", "disable_grouping", "video_metadata"}
)
#: Edge lengths below this would cut a picture into more tiles than it has sense.
_MIN_EDGE = 8
_MAX_TILES = 64


def parse_options(text: str) -> dict[str, Any]:
    """The options as a mapping; empty for none. Raises InvalidRequestError for what is no JSON object."""
    try:
        options = json.loads(text) if text else {}
    except ValueError as error:
        raise InvalidRequestError(f"{FIELD} is not valid JSON: {error}", field=FIELD) from error
    if not isinstance(options, dict):
        raise InvalidRequestError(f"{FIELD} must be a JSON object; given: {text[:100]}", field=FIELD, value=text[:100])
    return options


def check_options(kind: str, options: Mapping[str, Any], valid: frozenset[str], limits: MediaLimits) -> None:
    """Raises InvalidRequestError for options that the processor does not know, and for numbers that ask for too much."""
    known = valid - _NOT_FOR_REQUESTS
    for name, value in options.items():
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise InvalidRequestError(f"no such option for {kind}: {name}; known are {listed}", field=FIELD, value=name)
        _check_numbers(name, value, limits)


def _check_numbers(name: str, value: Any, limits: MediaLimits) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_numbers(f"{name}.{key}", inner, limits)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        most = _MAX_TILES if name.endswith(("patches", "num_crops")) else limits.max_pixels
        least = _MIN_EDGE if name.endswith(("edge", "height", "width")) else 0
        if name.endswith(("height", "width")):
            most = int(limits.max_pixels**0.5)
        if not least <= value <= most:
            raise InvalidRequestError(f"{name} must be in [{least}, {most}]; given: {value}", field=FIELD, limit=most, value=value)
