"""Which instruction sets a CPU has, and the one that the environment asks for."""

from __future__ import annotations

import platform

import pytest
from triptych.errors import StartupError
from triptych_common.host import cpu

HASWELL = frozenset(["avx2", "fma", "bmi2", "f16c"])
ALDER_LAKE = HASWELL | {"avx_vnni"}
SKYLAKE = HASWELL | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
ZEN_5 = SKYLAKE | {"avx512_vnni", "avx512_bf16", "avx_vnni"}
SAPPHIRE_RAPIDS = ZEN_5 | {"amx_tile", "amx_bf16"}


@pytest.fixture
def x86_64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.delenv(cpu.ISA_VARIABLE, raising=False)


@pytest.mark.usefixtures("x86_64")
@pytest.mark.parametrize(
    ("features", "best", "bfloat16"),
    [
        (SAPPHIRE_RAPIDS, "x86-64-v4-amx", True),
        (ZEN_5, "x86-64-v4-bf16", True),
        (SKYLAKE, "x86-64-v4", False),
        (ALDER_LAKE, "x86-64-v3-vnni", False),
        (HASWELL, "x86-64-v3", False),
    ],
)
def test_the_best_comes_first(monkeypatch: pytest.MonkeyPatch, features: frozenset[str], best: str, bfloat16: bool) -> None:
    monkeypatch.setattr(cpu, "cpu_features", lambda: features)
    lacking = {"x86-64-v3-vnni"} if "avx_vnni" not in features else set()
    assert cpu.isas_of_this_cpu() == [isa for isa in cpu.isas()[cpu.isas().index(best) :] if isa not in lacking]
    assert cpu.computes_bfloat16() is bfloat16
    assert cpu.torch_limits() == {}


@pytest.mark.usefixtures("x86_64")
def test_a_cpu_without_avx2_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "cpu_features", lambda: HASWELL - {"avx2"})
    assert cpu.isas_of_this_cpu() == []
    assert not cpu.computes_bfloat16()


@pytest.mark.usefixtures("x86_64")
@pytest.mark.parametrize(
    ("forced", "bfloat16", "onednn"),
    [
        ("x86-64-v4-bf16", True, "AVX512_CORE_BF16"),
        ("x86-64-v4-vnni", False, "AVX512_CORE_VNNI"),
        ("x86-64-v4", False, "AVX512_CORE"),
        ("x86-64-v3-vnni", False, "AVX2_VNNI"),
        ("x86-64-v3", False, "AVX2"),
    ],
)
def test_another_can_be_forced(monkeypatch: pytest.MonkeyPatch, forced: str, bfloat16: bool, onednn: str) -> None:
    monkeypatch.setattr(cpu, "cpu_features", lambda: SAPPHIRE_RAPIDS)
    monkeypatch.setenv(cpu.ISA_VARIABLE, forced)
    assert cpu.isas_of_this_cpu() == [forced]
    assert cpu.computes_bfloat16() is bfloat16
    assert cpu.torch_limits() == {"ATEN_CPU_CAPABILITY": "avx512" if "v4" in forced else "avx2", "ONEDNN_MAX_CPU_ISA": onednn}


@pytest.mark.usefixtures("x86_64")
@pytest.mark.parametrize("forced", ["x86-64-v4-amx", "x86-64-v2", "avx512"])
def test_one_that_the_cpu_lacks_is_refused(monkeypatch: pytest.MonkeyPatch, forced: str) -> None:
    monkeypatch.setattr(cpu, "cpu_features", lambda: SKYLAKE)
    monkeypatch.setenv(cpu.ISA_VARIABLE, forced)
    for ask in (cpu.isas_of_this_cpu, cpu.computes_bfloat16, cpu.torch_limits):
        with pytest.raises(StartupError, match=f"TRIPTYCH_CPU_ISA is '{forced}'; this CPU has x86-64-v4, x86-64-v3"):
            ask()


def test_it_is_refused_on_arm_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(cpu, "cpu_features", frozenset)
    monkeypatch.setenv(cpu.ISA_VARIABLE, "nonsense")
    for ask in (cpu.isas_of_this_cpu, cpu.computes_bfloat16):
        with pytest.raises(StartupError, match="TRIPTYCH_CPU_ISA is 'nonsense'; this CPU has armv8-a"):
            ask()


def test_arm_has_one_and_reports_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.delenv(cpu.ISA_VARIABLE, raising=False)
    monkeypatch.setattr(cpu, "cpu_features", lambda: frozenset({"bf16"}))
    assert cpu.isas_of_this_cpu() == ["armv8-a"]
    assert cpu.computes_bfloat16()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has CPUID")
def test_cpuid_reports_no_more_than_the_linux_kernel() -> None:
    """In an emulator it reports less: /proc/cpuinfo describes the machine below."""
    assert cpu.cpu_features() <= cpu._features_of_cpuinfo()
