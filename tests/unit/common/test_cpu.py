"""Which instruction sets a CPU has, and the one that the environment asks for."""

from __future__ import annotations

import platform

import pytest
from triptych.errors import StartupError
from triptych_common.host import cpu

SKYLAKE = frozenset(["avx2", "fma", "bmi2", "f16c", "sse4_2", "ssse3", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
ZEN_5 = SKYLAKE | {"avx512_vnni", "avx512_bf16"}
SAPPHIRE_RAPIDS = ZEN_5 | {"amx_tile", "amx_bf16"}


@pytest.fixture(autouse=True)
def _x86_64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.delenv(cpu.ISA_VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("flags", "best", "bfloat16"),
    [
        (SAPPHIRE_RAPIDS, "x86-64-v4-amx", True),
        (ZEN_5, "x86-64-v4-bf16", True),
        (SKYLAKE, "x86-64-v4", False),
        (frozenset({"sse4_2", "ssse3"}), "x86-64-v2", False),
        (frozenset[str](), "x86-64", False),
    ],
)
def test_the_best_comes_first(monkeypatch: pytest.MonkeyPatch, flags: frozenset[str], best: str, bfloat16: bool) -> None:
    monkeypatch.setattr(cpu, "_flags", lambda: flags)
    assert cpu.isas_of_this_cpu() == cpu.isas()[cpu.isas().index(best) :]
    assert cpu.computes_bfloat16() is bfloat16


@pytest.mark.parametrize(("forced", "bfloat16"), [("x86-64-v4-bf16", True), ("x86-64-v4-vnni", False), ("x86-64-v3", False)])
def test_another_can_be_forced(monkeypatch: pytest.MonkeyPatch, forced: str, bfloat16: bool) -> None:
    monkeypatch.setattr(cpu, "_flags", lambda: SAPPHIRE_RAPIDS)
    monkeypatch.setenv(cpu.ISA_VARIABLE, forced)
    assert cpu.isas_of_this_cpu() == [forced]
    assert cpu.computes_bfloat16() is bfloat16


@pytest.mark.parametrize("forced", ["x86-64-v4-amx", "avx512"])
def test_one_that_the_cpu_lacks_is_refused(monkeypatch: pytest.MonkeyPatch, forced: str) -> None:
    monkeypatch.setattr(cpu, "_flags", lambda: SKYLAKE)
    monkeypatch.setenv(cpu.ISA_VARIABLE, forced)
    for ask in (cpu.isas_of_this_cpu, cpu.computes_bfloat16):
        with pytest.raises(StartupError, match=f"TRIPTYCH_CPU_ISA is '{forced}'; this CPU has x86-64-v4, x86-64-v3"):
            ask()


def test_it_is_refused_on_arm_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setenv(cpu.ISA_VARIABLE, "nonsense")
    for ask in (cpu.isas_of_this_cpu, cpu.computes_bfloat16):
        with pytest.raises(StartupError, match="TRIPTYCH_CPU_ISA is 'nonsense'; this CPU has armv8-a"):
            ask()


def test_arm_says_it_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(cpu, "_flags", lambda: frozenset({"asimd", "bf16"}))
    assert cpu.isas_of_this_cpu() == ["armv8-a"]
    assert cpu.computes_bfloat16()
