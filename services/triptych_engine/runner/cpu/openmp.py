"""Lets the CPU kernels find the OpenMP runtime that torch computes with."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

_FUNCTION = "omp_get_thread_num"


class _DlInfo(ctypes.Structure):
    """`Dl_info` of <dlfcn.h>."""

    _fields_ = (
        ("file_name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol_name", ctypes.c_char_p),
        ("symbol_address", ctypes.c_void_p),
    )


def runtime_of(library: ctypes.CDLL) -> Path | None:
    """The file of the OpenMP runtime that a loaded library uses; None if it uses none."""
    function = getattr(library, _FUNCTION, None)  # dlsym also looks in the libraries that this one needs
    info = _DlInfo()
    if function is None or not ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(info)):
        return None
    return Path(info.file_name.decode())


def share_runtime_of_torch() -> None:
    """Make the symbols of torch's OpenMP runtime visible to libraries that are loaded later.

    torch's wheels for x86-64 do so themselves. Those for ARM load it for torch alone, and the kernels would not load.
    """
    torch_cpu = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if hasattr(ctypes.CDLL(None), _FUNCTION) or not torch_cpu.exists():
        return
    if (runtime := runtime_of(ctypes.CDLL(str(torch_cpu)))) is not None:
        ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
