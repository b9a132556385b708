"""The instruction sets of this CPU, and which of them Triptych uses. Needs no torch."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

from triptych.errors import StartupError

#: Environment variable that names one of `isas`. Our own kernels then use it instead of the best one, to compare instruction sets
#: or to avoid one that is slow on a CPU. For torch's own operations it only changes the dtype that `auto` selects.
ISA_VARIABLE = "TRIPTYCH_CPU_ISA"
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
#: Instruction set -> the flags that distinguish it from the others, as /proc/cpuinfo names them. Best first.
_X86_64 = {
    "x86-64-v4-amx": _AVX512 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16"},
    "x86-64-v4-bf16": _AVX512 | {"avx512_vnni", "avx512_bf16"},
    "x86-64-v4-vnni": _AVX512 | {"avx512_vnni"},
    "x86-64-v4": _AVX512,
    "x86-64-v3": frozenset({"avx2", "fma", "bmi2", "f16c"}),
    "x86-64-v2": frozenset({"sse4_2", "ssse3"}),
    "x86-64": frozenset[str](),
}
_ARM = {"armv8-a": frozenset[str]()}
_ISAS = {"x86_64": _X86_64, "aarch64": _ARM, "arm64": _ARM}
#: Flags of instructions that multiply bfloat16, on x86-64 and on ARM.
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def isas() -> list[str]:
    """The instruction sets that kernels are built for on this machine type, best first; empty on an untested machine type."""
    return list(_ISAS.get(platform.machine(), {}))


def isas_of_this_cpu() -> list[str]:
    """The instruction sets of `isas` that this CPU has, best first; only $TRIPTYCH_CPU_ISA if that is set.

    Raises:
        StartupError: the variable names an instruction set that this CPU does not have.
    """
    flags = _flags()
    own = [isa for isa, needed in _ISAS.get(platform.machine(), {}).items() if needed <= flags]
    forced = os.environ.get(ISA_VARIABLE)
    if not forced:
        return own
    if forced not in own:
        raise StartupError(f"{ISA_VARIABLE} is {forced!r}; this CPU has {', '.join(own) or 'none that kernels are built for'}")
    return [forced]


def computes_bfloat16() -> bool:
    """Whether this CPU, and the instruction set in use, can multiply bfloat16.

    Raises:
        StartupError: see `isas_of_this_cpu`.
    """
    flags, usable = _flags(), isas_of_this_cpu()
    if os.environ.get(ISA_VARIABLE) and platform.machine() == "x86_64":
        flags &= _X86_64[usable[0]]
    return not _BF16_FLAGS.isdisjoint(flags)


@functools.cache
def _flags() -> frozenset[str]:
    """The flags from the first matching line of /proc/cpuinfo; empty where there is no such file."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    of_cores = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(of_cores, []))
