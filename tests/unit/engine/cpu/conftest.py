"""The kernels need AVX2, or ARM. Elsewhere the engine computes without them."""

from __future__ import annotations

import pytest
from triptych_common.host.cpu import isas_of_this_cpu


@pytest.fixture(autouse=True)
def has_kernels() -> None:
    if not isas_of_this_cpu():
        pytest.skip("this CPU has no instruction set that the kernels use")
