"""Arrays on their way to the device and back; on a CPU, by the same code but for pinned memory."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from triptych_engine.runner.transfer import HostToDevice, fetch

CPU = torch.device("cpu")
DTYPES = st.sampled_from([np.int32, np.int64, np.float32, np.float64, np.bool_])
SHAPES = arrays.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=5)


@given(st.lists(arrays.arrays(DTYPES, SHAPES), min_size=1, max_size=5))
def test_joined_into_one_copy_they_are_what_they_were(sent: list[np.ndarray]):
    for got, array in zip(HostToDevice(CPU, packed=True)(*sent), sent, strict=True):
        assert got.numpy().dtype == array.dtype
        np.testing.assert_array_equal(got.numpy(), array)


def test_a_copy_does_not_change_with_the_array():
    array = np.arange(6).reshape(2, 3)
    (got,) = HostToDevice(CPU, packed=True)(array[:, 1:])
    array[:] = 0
    assert got.tolist() == [[1, 2], [4, 5]]


def test_on_a_cpu_nothing_is_copied():
    array = np.arange(3)
    (got,) = HostToDevice(CPU)(array)
    assert got.data_ptr() == array.ctypes.data
    (back,) = fetch(got)()
    assert back.ctypes.data == array.ctypes.data
