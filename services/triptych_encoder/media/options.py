"""A request's options for the model's processor, see triptych_common.media.processor_options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from triptych_common.media.limits import MediaLimits
from triptych_common.media.processor_options import NOT_FOR_REQUESTS, check_option_numbers
from triptych_common.rpc.errors import InvalidRequestError

FIELD = "processor_options_json"


def parse_options(text: str) -> dict[str, Any]:
    """The options as a mapping; empty for none. Raises InvalidRequestError for what is no JSON object."""
    try:
        options = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{FIELD} is not valid JSON: {error}", field=FIELD) from error
    if not isinstance(options, dict):
        raise InvalidRequestError(f"{FIELD} must be a JSON object; given: {text[:100]}", field=FIELD, value=text[:100])
    return options


def check_options(kind: str, options: Mapping[str, Any], valid: frozenset[str], limits: MediaLimits) -> None:
    """Raise InvalidRequestError for options that the processor does not know, and for numbers out of range."""
    known = valid - NOT_FOR_REQUESTS
    for name in options:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise InvalidRequestError(f"no such option for {kind}: {name}; known are {listed}", field=FIELD, value=name)
    check_option_numbers(options, limits.max_pixels, FIELD)
