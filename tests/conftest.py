"""Prepares the process before any test imports torch.

OpenMP threads must not spin, because other programs run beside the tests. No instruction set is forced: the tests run with each one
that this CPU has.
"""

import gc
import os

import pytest
from triptych_common.host.cores import limit_openmp_spinning
from triptych_common.host.cpu import ISA_VARIABLE

limit_openmp_spinning()
os.environ.pop(ISA_VARIABLE, None)


@pytest.fixture(scope="module", autouse=True)
def earlier_objects_frozen() -> None:
    """Exclude what earlier modules made from garbage collection, as services do with what they import.

    A collection would scan a million objects of torch and transformers in half a second, and each start of a frontend or an engine
    has one.
    """
    gc.collect()
    gc.freeze()
