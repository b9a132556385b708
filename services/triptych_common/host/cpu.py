"""The instruction sets of this CPU, and which of them Triptych uses. Needs no torch."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from triptych.errors import StartupError

#: Environment variable that names one of `isas`. Our kernels, ATen and oneDNN then use it instead of the best one, to compare
#: instruction sets or to avoid one that is slow on a CPU. `set_torch_environment` passes it on to torch.
ISA_VARIABLE = "TRIPTYCH_CPU_ISA"
_AVX2 = frozenset({"avx2", "fma", "bmi2", "f16c"})
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
#: Instruction set -> the features that distinguish it from the others. Best first.
_X86_64 = {
    "x86-64-v4-amx": _AVX512 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16"},
    "x86-64-v4-bf16": _AVX512 | {"avx512_vnni", "avx512_bf16"},
    "x86-64-v4-vnni": _AVX512 | {"avx512_vnni"},
    "x86-64-v4": _AVX512,
    "x86-64-v3-vnni": _AVX2 | {"avx_vnni"},
    "x86-64-v3": _AVX2,
}
_ARM = {"armv8-a": frozenset[str]()}
_ISAS = {"x86_64": _X86_64, "aarch64": _ARM, "arm64": _ARM}
#: Instructions that multiply bfloat16, on x86-64 and on ARM.
_BF16_FEATURES = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
#: Instruction set -> the variables that limit ATen and oneDNN to it. The best one needs no limit.
_TORCH_LIMITS = {
    "x86-64-v4-bf16": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
    "x86-64-v4-vnni": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"},
    "x86-64-v4": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "x86-64-v3-vnni": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2_VNNI"},
    "x86-64-v3": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
#: Feature -> its place in what glibc returns: the index of the CPUID leaf (enum cpuid_index in <sys/platform/x86.h>), the register
#: (EAX, EBX, ECX, EDX), the bit.
_CPUID_1, _CPUID_7, _CPUID_7_1 = 0, 1, 6
_X86_BITS = {
    "fma": (_CPUID_1, 2, 12),
    "f16c": (_CPUID_1, 2, 29),
    "avx2": (_CPUID_7, 1, 5),
    "bmi2": (_CPUID_7, 1, 8),
    "avx512f": (_CPUID_7, 1, 16),
    "avx512dq": (_CPUID_7, 1, 17),
    "avx512cd": (_CPUID_7, 1, 28),
    "avx512bw": (_CPUID_7, 1, 30),
    "avx512vl": (_CPUID_7, 1, 31),
    "avx512_vnni": (_CPUID_7, 2, 11),
    "amx_bf16": (_CPUID_7, 3, 22),
    "amx_tile": (_CPUID_7, 3, 24),
    "avx_vnni": (_CPUID_7_1, 0, 4),
    "avx512_bf16": (_CPUID_7_1, 0, 5),
}
#: Type AT_HWCAP2 of the auxiliary vector, and its bit for bfloat16 on ARM (HWCAP2_BF16 in <asm/hwcap.h>).
_AT_HWCAP2, _ARM_BF16 = 26, 1 << 14


def isas() -> list[str]:
    """The instruction sets that kernels are built for on this machine type, best first; empty on an untested machine type."""
    return list(_ISAS.get(platform.machine(), {}))


def isas_of_this_cpu() -> list[str]:
    """The instruction sets of `isas` that this CPU has, best first; only $TRIPTYCH_CPU_ISA if that is set.

    Raises:
        StartupError: the variable names an instruction set that this CPU does not have.
    """
    features = cpu_features()
    own = [isa for isa, needed in _ISAS.get(platform.machine(), {}).items() if needed <= features]
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
    features, usable = cpu_features(), isas_of_this_cpu()
    if os.environ.get(ISA_VARIABLE) and platform.machine() == "x86_64":
        features &= _X86_64[usable[0]]
    return not _BF16_FEATURES.isdisjoint(features)


def torch_limits() -> Mapping[str, str]:
    """The environment variables that limit ATen and oneDNN to $TRIPTYCH_CPU_ISA; empty if that is not set.

    Raises:
        StartupError: see `isas_of_this_cpu`.
    """
    return _TORCH_LIMITS.get(isas_of_this_cpu()[0], {}) if os.environ.get(ISA_VARIABLE) else {}


@functools.cache
def cpu_features() -> frozenset[str]:
    """The features of `isas` and for bfloat16 that this CPU has and the operating system enables.

    On x86-64 they come from CPUID and XCR0, which glibc 2.33 or newer reads at the start of the process. /proc/cpuinfo is not
    correct in an emulator; it is the fallback for other C libraries. On ARM they come from the auxiliary vector.
    """
    libc = ctypes.CDLL(None)
    if platform.machine() != "x86_64":
        if not hasattr(libc, "getauxval"):
            return frozenset()
        libc.getauxval.restype, libc.getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
        return frozenset({"bf16"} if libc.getauxval(_AT_HWCAP2) & _ARM_BF16 else ())
    if not hasattr(libc, "__x86_get_cpuid_feature_leaf"):
        return _features_of_cpuinfo()
    leaf = getattr(libc, "__x86_get_cpuid_feature_leaf")
    leaf.restype, leaf.argtypes = ctypes.POINTER(_CpuidFeature), [ctypes.c_uint]
    return frozenset(name for name, (index, register, bit) in _X86_BITS.items() if leaf(index).contents.active[register] >> bit & 1)


class _CpuidFeature(ctypes.Structure):
    """struct cpuid_feature of <sys/platform/x86.h>: what the CPU has, and what of it the operating system enables."""

    _fields_ = (("cpuid", ctypes.c_uint32 * 4), ("active", ctypes.c_uint32 * 4))


def _features_of_cpuinfo() -> frozenset[str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


if __name__ == "__main__":  # for `make test-levels`: the instruction sets below the best one
    print(*isas_of_this_cpu()[1:])
