"""Prepares the process before any test imports torch.

OpenMP threads must not spin, because other programs run beside the tests. With TRIPTYCH_CPU_ISA, our kernels, ATen and oneDNN all
use that instruction set, as on a CPU that has no better one.
"""

import gc

import pytest
from triptych_common.host.torch_env import set_torch_environment

set_torch_environment()


@pytest.fixture(scope="module", autouse=True)
def earlier_objects_frozen() -> None:
    """Exclude what earlier modules made from garbage collection, as services do with what they import.

    A collection would scan a million objects of torch and transformers in half a second, and each start of a frontend or an engine
    has one.
    """
    gc.collect()
    gc.freeze()
