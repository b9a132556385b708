"""The kernels between a layer's matrix products, under Triton's interpreter, and a whole engine that uses them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders.engine import a_request, save_random_model
from support.builders.text_families import FAMILIES, PROMPTS
from support.drivers.engine import EngineDriver, transformers_greedy
from support.drivers.gpu_layers import check_layer_kernels
from triptych_engine.runner import builder
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.fusion.decoder import Decoder
from triptych_engine.runner.fusion.layer import first_tokens
from triptych_engine.runner.model import loader

pytest.importorskip("triton", minversion="3.7")  # the interpreter of 3.6 fails with NumPy 2.4
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton's interpreter is off on a machine with a GPU", allow_module_level=True)

from support.drivers.pretended_gpu import Launches
from triptych_engine.runner.cuda.attention import CudaAttention
from triptych_engine.runner.cuda.fused import CudaFusedKernels, CudaLayers

CPU = torch.device("cpu")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 3e-2)])
def test_they_match_plain_torch(dtype: torch.dtype, tolerance: float):
    check_layer_kernels(CudaFusedKernels(CPU), CPU, dtype, tolerance)


@pytest.mark.parametrize("family", ["qwen3", *(pytest.param(one, marks=pytest.mark.long) for one in ("gemma3-text", "qwen3-moe"))])
def test_a_whole_engine_computes_what_transformers_does(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Recognised, checked at load, and run in ragged chunks with a prefix hit, as on a GPU."""
    save_random_model(tmp_path, FAMILIES[family])
    monkeypatch.setattr(loader, "NUM_PROBE_TOKENS", 8)  # each one takes long under Triton's interpreter
    expected = transformers_greedy(tmp_path, PROMPTS, 3, eos_token_id=None)
    monkeypatch.setattr(builder, "choose_backend", lambda *args, **options: CudaAttention(CPU))
    monkeypatch.setattr(builder, "fused_kernels", lambda *args: CudaFusedKernels(CPU))
    driver = EngineDriver(tmp_path)
    assert isinstance(driver.runner._model.decoder, Decoder)
    requests = [a_request(f"r{i}", prompt, max_tokens=3) for i, prompt in enumerate(PROMPTS)]
    generated = driver.run(driver.scheduler(max_num_batched_tokens=13), requests, arrivals=[0, 6, 7])
    assert [generated[f"r{i}"].token_ids for i in range(len(PROMPTS))] == expected
    stack = driver.runner._model.decoder._stack
    assert isinstance(stack, CudaLayers)
    launches = Launches(monkeypatch)
    backend = driver.runner._backend
    backend.begin(first_tokens(1))
    inputs = torch.randn(1, 64), [(torch.ones(1, 16), torch.zeros(1, 16))] * len(stack.parts)
    with launches, torch.inference_mode():
        stack.compute(backend, *inputs)
    # A mixture takes one more in each layer, and one for all layers.
    num_mixtures = sum(layer.moe is not None for layer in stack.parts)
    assert num_mixtures == (len(stack.parts) if family == "qwen3-moe" else 0)
    assert len(launches.names) == 9 * len(stack.parts) + 1 + (num_mixtures + 1 if num_mixtures else 0), launches.names


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of inputs that are large on purpose
@pytest.mark.parametrize("family", ["llama", "olmo2"])
def test_families_in_16_bits_pass_the_checks_at_load(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of olmo2, linear layers get the residual stream itself, which is float32."""
    save_random_model(tmp_path, FAMILIES[family], dtype=torch.float16)
    monkeypatch.setattr(builder, "choose_backend", lambda *args, **options: CudaAttention(CPU))
    monkeypatch.setattr(builder, "fused_kernels", lambda *args: CudaFusedKernels(CPU))
    driver = EngineDriver(tmp_path, dtype=torch.float16)
    assert (driver.runner._model.decoder is not None) == (family == "llama")
    logits = driver.runner.prompt_logits([1, 2, 3])
    assert logits.dtype == torch.float32


def test_without_kernels_the_models_own_layers_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fails(*args: Any, **options: Any) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(CudaFusedKernels, "rms_norm", fails)
    monkeypatch.setattr(torch, "ones", lambda *sizes, **options: torch.zeros(*sizes))  # there is no device
    config = RunnerConfig(tmp_path, "test", 64, 2, 64, 16, 1 << 20, device=torch.device("cuda"))
    assert builder.fused_kernels(config, None) is None
    assert "the model's own layers are used" in caplog.text
    assert "C compiler" in caplog.text
