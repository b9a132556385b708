"""Kernels load where torch's OpenMP runtime was loaded for torch alone, as with its wheels for ARM."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest
import torch
from triptych_engine.runner.cpu import openmp

_FUNCTION = "function_of_a_runtime"


def _build(path: Path, source: str, *libraries: Path) -> Path:
    """A shared library of C code that needs these libraries."""
    flags = ["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"]
    subprocess.run(
        [os.environ.get("CXX", "g++"), *flags, "-xc", "-", "-xnone", *map(str, libraries), "-o", str(path)],
        input=source,
        text=True,
        check=True,
    )
    return path


def test_the_runtime_of_torch_becomes_visible_to_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "lib").mkdir()
    runtime = _build(tmp_path / "lib" / "libruntime.so", f"int {_FUNCTION}(void) {{ return 7; }}")
    torch_cpu = _build(tmp_path / "lib" / "libtorch_cpu.so", "int of_torch(void) { return 1; }", runtime)
    source = f"extern int {_FUNCTION}(void); int kernel(void) {{ return {_FUNCTION}(); }}"
    kernels = _build(tmp_path / "kernels.so", source)
    ctypes.CDLL(str(torch_cpu))
    with pytest.raises(OSError, match=_FUNCTION):
        ctypes.CDLL(str(kernels))
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(openmp, "_FUNCTION", _FUNCTION)
    openmp.share_runtime_of_torch()
    assert ctypes.CDLL(str(kernels)).kernel() == 7


def test_the_runtime_is_the_one_that_torch_has_loaded():
    runtime = openmp.runtime_of(ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")))
    assert runtime is not None
    assert str(runtime.resolve()) in Path("/proc/self/maps").read_text()
    assert openmp.runtime_of(ctypes.CDLL("libm.so.6")) is None
