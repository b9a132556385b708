"""Tensors on the wire, to and from numpy. numpy has no bfloat16, so reading bfloat16 needs torch (`DTYPE_NAMES`)."""

from __future__ import annotations

import math

import numpy as np
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2

#: Torch's name of each element type. It is also numpy's, except for bfloat16.
DTYPE_NAMES: dict[common_pb2.DataType, str] = {
    common_pb2.DATA_TYPE_FLOAT32: "float32",
    common_pb2.DATA_TYPE_FLOAT16: "float16",
    common_pb2.DATA_TYPE_BFLOAT16: "bfloat16",
    common_pb2.DATA_TYPE_INT64: "int64",
    common_pb2.DATA_TYPE_INT32: "int32",
    common_pb2.DATA_TYPE_UINT8: "uint8",
    common_pb2.DATA_TYPE_BOOL: "bool",
}
DATA_TYPES: dict[str, common_pb2.DataType] = {name: value for value, name in DTYPE_NAMES.items()}
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}


def num_bytes(header: common_pb2.Tensor) -> int:
    """Size of the tensor's data. Raises InvalidRequestError when the dtype or the shape is invalid."""
    name = DTYPE_NAMES.get(header.dtype)
    if name is None:
        raise InvalidRequestError(f"no such element type: {header.dtype}", field="dtype", value=header.dtype)
    if any(extent < 0 for extent in header.shape):
        raise InvalidRequestError(f"a shape has no negative extents; given: {list(header.shape)}", field="shape")
    return math.prod(header.shape) * _ITEM_BYTES[name]


def from_numpy(array: np.ndarray) -> common_pb2.Tensor:
    """The array as a message with inline data. Raises KeyError for an element type that the contract lacks."""
    return common_pb2.Tensor(dtype=DATA_TYPES[array.dtype.name], shape=array.shape, inline=np.ascontiguousarray(array).tobytes())


def to_numpy(tensor: common_pb2.Tensor) -> np.ndarray:
    """The message's array, read-only. Its data must be inline.

    Raises:
        InvalidRequestError: the data does not match dtype and shape, or numpy lacks the dtype.
    """
    expected, name = num_bytes(tensor), DTYPE_NAMES[tensor.dtype]
    if len(tensor.inline) != expected:
        raise InvalidRequestError(
            f"a tensor of {name} {list(tensor.shape)} has {expected} bytes; it came with {len(tensor.inline)}",
            limit=expected,
            value=len(tensor.inline),
        )
    if name == "bfloat16":
        raise InvalidRequestError("bfloat16 cannot be read here", field="dtype", value=name)
    return np.frombuffer(tensor.inline, dtype=name).reshape(tuple(tensor.shape))
