"""How the CPU kernels are found, built and chosen, and that each instruction set computes right."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.cpu_levels import LEVELS
from support.drivers.attention import RAGGED, TOLERANCE, run_both
from support.waiting import until
from triptych_common.host.cpu import isas_of_this_cpu
from triptych_engine.runner import builder
from triptych_engine.runner.attention.paged import LayerShape
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu import kernel_build
from triptych_engine.runner.cpu import kernels as cpu_kernels
from triptych_engine.runner.cpu.kernels import CpuKernels, load_kernels


def test_without_a_compiler_there_is_a_warning_and_no_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path))
    monkeypatch.delenv("TRIPTYCH_KERNEL_DIR", raising=False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert load_kernels.__wrapped__() is None
    assert "no C++ compiler found" in caplog.text


def test_kernels_that_multiply_wrongly_are_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    multiply = CpuKernels.linear
    seen: list[CpuKernels] = []

    def wrong_in_the_first(self: CpuKernels, x: torch.Tensor, *rest: object) -> torch.Tensor:
        out = multiply(self, x, *rest)  # type: ignore[arg-type]
        seen.append(self)
        if self is seen[0] and len(x) > 32:
            out[-1, -1] += 0.1
        return out

    monkeypatch.setattr(CpuKernels, "linear", wrong_in_the_first)
    if len(LEVELS) < 2:
        pytest.skip("this CPU has one instruction set, and no other can take its place")
    monkeypatch.setattr(cpu_kernels, "isas_of_this_cpu", lambda: LEVELS)  # other tests need the kernels of both
    best, second = LEVELS
    loaded = load_kernels.__wrapped__()
    assert loaded is not None
    assert loaded is not seen[0]
    assert f"for {best} multiply wrongly" in caplog.text
    assert f"for {second} multiply" not in caplog.text


def test_a_prebuilt_library_is_found(kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    library = kernel_build.find(isas_of_this_cpu()[0])
    assert library is not None
    prebuilt = tmp_path / "prebuilt"
    prebuilt.mkdir()
    shutil.copy(library, prebuilt)
    monkeypatch.setenv("TRIPTYCH_KERNEL_DIR", str(prebuilt))
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", "")
    assert load_kernels.__wrapped__() is not None


def test_a_library_that_does_not_load_is_built_again(
    kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    good = kernel_build.find(isas_of_this_cpu()[0])
    assert good is not None
    monkeypatch.delenv("TRIPTYCH_KERNEL_DIR", raising=False)
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path))
    bad = tmp_path / "kernels" / good.name
    bad.parent.mkdir()
    content = b"for another system"
    bad.write_bytes(content + hashlib.sha256(content).digest())
    monkeypatch.setattr(kernel_build, "build", lambda isa, folder: Path(shutil.copy(good, folder)))
    assert load_kernels.__wrapped__() is not None
    assert f"{bad} does not load and is built again" in caplog.text
    assert bad.read_bytes() == good.read_bytes()


async def test_two_processes_that_want_the_same_library_build_it_once(
    kernels: CpuKernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Threads stand in for processes: each has the folder open for itself."""
    caplog.set_level(logging.INFO)
    isa, built, waits = isas_of_this_cpu()[0], [], threading.Event()
    good = kernel_build.find(isa)
    assert good is not None

    def compile_slowly(compiler: str, isa: str, flags: tuple[str, ...], target: Path) -> None:
        built.append(isa)
        waits.wait(10)
        shutil.copyfile(good, target)

    monkeypatch.setattr(kernel_build, "_compile", compile_slowly)
    both = asyncio.gather(*(asyncio.to_thread(kernel_build.build, isa, tmp_path) for _ in range(2)))
    await until(lambda: "waiting for another process" in caplog.text)
    waits.set()
    assert [made.read_bytes() for made in await both] == 2 * [good.read_bytes()]
    assert built == [isa]
    kernel_build.build(isa, tmp_path)  # who found it broken
    assert built == 2 * [isa]


@pytest.mark.parametrize("isa", LEVELS)
def test_each_instruction_set_that_this_cpu_has_is_right(isa: str, kernels_for: Callable[[str], CpuKernels]):
    kernels = kernels_for(isa)
    for dtype, tolerance in TOLERANCE.items():
        assert run_both(kernels, shape=LayerShape(3, 64, 64), num_q_heads=9, dtype=dtype, steps=RAGGED) < tolerance
    weight = torch.randn(96, 900).bfloat16()
    for rows in (1, 5, 47, 100):
        x = torch.randn(rows, 900)
        expected = (x.double() @ weight.double().T).float()
        torch.testing.assert_close(kernels.linear_wide(x, kernels.pack_linear(weight), None, 96), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", LEVELS)
def test_a_forced_instruction_set_serves_a_model(isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Loading checks its logits against transformers'."""
    monkeypatch.setenv("TRIPTYCH_CPU_ISA", isa)
    monkeypatch.setattr(builder, "load_kernels", load_kernels.__wrapped__)
    path = save_random_model(tmp_path, a_tiny_llama_config(), dtype=torch.bfloat16)
    runner = build_runner(RunnerConfig(path, "test", 256, 8, 64, 16, 1 << 20))
    has_bfloat16 = "bf16" in isa or "amx" in isa
    assert runner._model.dtype == (torch.bfloat16 if has_bfloat16 else torch.float32)
    assert runner._backend.dtype == torch.bfloat16
    assert runner.prompt_logits([5, 6, 7]).isfinite().all()
