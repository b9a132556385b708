"""A request's options for the model's processor, see triptych_common.media.processor_options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import struct_pb2
from triptych.errors import InvalidRequestError
from triptych_common.media.limits import MediaLimits
from triptych_common.media.processor_options import NOT_FOR_REQUESTS, check_option_numbers
from triptych_common.rpc.structs import from_struct

FIELD = "processor_options"


def parse_options(struct: struct_pb2.Struct) -> dict[str, Any]:
    """The options as a mapping; empty if there are none. Raises InvalidRequestError for numbers that JSON does not have."""
    try:
        return from_struct(struct)
    except ValueError as error:
        raise InvalidRequestError(f"{FIELD} {error}", field=FIELD) from error


def check_options(kind: str, options: Mapping[str, Any], valid: frozenset[str], limits: MediaLimits) -> None:
    """Raise InvalidRequestError for options that the processor does not know, and for numbers out of range."""
    known = valid - NOT_FOR_REQUESTS
    for name in options:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise InvalidRequestError(f"no such option for {kind}: {name}; known are {listed}", field=FIELD, value=name)
    check_option_numbers(options, limits.max_pixels, FIELD)
