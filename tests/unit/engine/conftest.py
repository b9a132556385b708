"""The CPU kernels of each instruction set, built once for all tests and kept where the engine keeps its own."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import pytest
from support.triton_interpreter import prepare_interpreter
from triptych_common.host.cache import cache_dir
from triptych_common.host.cpu import isas_of_this_cpu
from triptych_engine.runner.cpu import kernel_build
from triptych_engine.runner.cpu.kernels import LINEAR_METHODS, CpuKernels, load_kernels


@pytest.fixture(scope="module", autouse=True)
def interpreter_prepared() -> None:
    prepare_interpreter()


@pytest.fixture(scope="session")
def kernels_for() -> Callable[..., CpuKernels]:
    """(instruction set, further flags of the compiler) -> kernels."""

    def load(isa: str, *flags: str) -> CpuKernels:
        library = kernel_build.find(isa, flags) or kernel_build.build(isa, cache_dir() / "kernels", flags)
        return CpuKernels(ctypes.CDLL(str(library)), library)

    return functools.cache(load)


@pytest.fixture(scope="session")
def emulating(kernels: CpuKernels, kernels_for: Callable[..., CpuKernels]) -> Callable[[str], CpuKernels]:
    """One of cpu_kernels.LINEAR_METHODS -> kernels that compute so, if need be with instructions in software."""
    isa = isas_of_this_cpu()[0]
    own = kernels
    flags = {method: f"-DTRIPTYCH_EMULATE_BF16={i}" for i, method in enumerate(LINEAR_METHODS)}
    return lambda method: own if own.linear_method == method else kernels_for(isa, flags[method])


@pytest.fixture(scope="session")
def kernels() -> CpuKernels:
    """Those that the engine takes on this CPU."""
    if not isas_of_this_cpu():
        pytest.skip("this CPU has no instruction set that the kernels use")
    loaded = load_kernels()
    assert loaded is not None, "the kernels must build where the tests run"
    return loaded
