"""Tensors on the wire."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2
from triptych_common.rpc.tensors import DTYPE_NAMES, from_numpy, num_bytes, to_numpy

NUMPY_NAMES = sorted(set(DTYPE_NAMES.values()) - {"bfloat16"})


@pytest.mark.parametrize("name", NUMPY_NAMES)
@given(shape=arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
def test_an_array_comes_back_as_it_was(name: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(name)
    back = to_numpy(from_numpy(array.T)).T
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_data_that_does_not_fit_the_shape_is_refused() -> None:
    tensor = common_pb2.Tensor(dtype=common_pb2.DATA_TYPE_INT64, shape=[2, 3], inline=b"12345678")
    with pytest.raises(InvalidRequestError, match=r"48 bytes; it came with 8"):
        to_numpy(tensor)


@pytest.mark.parametrize(
    "tensor",
    [common_pb2.Tensor(dtype=common_pb2.DATA_TYPE_UNSPECIFIED), common_pb2.Tensor(dtype=common_pb2.DATA_TYPE_BOOL, shape=[-1])],
)
def test_headers_that_mean_nothing_are_refused(tensor: common_pb2.Tensor) -> None:
    with pytest.raises(InvalidRequestError):
        num_bytes(tensor)
