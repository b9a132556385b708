"""JSON objects on the wire: google.protobuf.Struct, to and from dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format, struct_pb2


def to_struct(value: Mapping[str, Any]) -> struct_pb2.Struct:
    """A JSON object. Raises ValueError when it holds something that JSON does not have, e.g. NaN or bytes."""
    struct = struct_pb2.Struct()
    struct.update(value)
    return struct


def from_struct(struct: struct_pb2.Struct) -> dict[str, Any]:
    """The object. A Struct has doubles only, so numbers without a fraction become integers, which they were in most cases.

    Raises:
        ValueError: a number is infinite or NaN.
    """
    try:
        return _whole_numbers(json_format.MessageToDict(struct))
    except (json_format.Error, ValueError) as error:
        raise ValueError("has a number that JSON does not have (NaN or infinity)") from error


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return value
