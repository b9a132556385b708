"""The CPU kernels of each instruction set, built once for all tests."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import pytest
from triptych_engine.runner import kernel_build
from triptych_engine.runner.cpu_kernels import LINEAR_METHODS, CpuKernels, load_kernels


@pytest.fixture(scope="session")
def kernels_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., CpuKernels]:
    """(instruction set, further flags of the compiler) -> kernels."""
    folder = tmp_path_factory.mktemp("kernels")
    return functools.cache(lambda isa, *flags: CpuKernels(ctypes.CDLL(str(kernel_build.build(isa, folder, flags)))))


@pytest.fixture(scope="session")
def emulating(kernels_for: Callable[..., CpuKernels]) -> Callable[[str], CpuKernels]:
    """One of cpu_kernels.LINEAR_METHODS -> kernels that compute so, if need be with instructions in software."""
    own, isa = load_kernels(), kernel_build.isas_of_this_cpu()[0]
    assert own is not None
    flags = {method: f"-DTRIPTYCH_EMULATE_BF16={i}" for i, method in enumerate(LINEAR_METHODS)}
    return lambda method: own if own.linear_method == method else kernels_for(isa, flags[method])
