"""A decoder layer as one kernel call computes what its parts do, in prefill, in chunks and in decoding, alone and in company."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.builders.engine import a_request, a_scheduler, a_tiny_llama_config, save_random_model
from transformers import (
    GraniteMoeHybridConfig,
    Lfm2Config,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3_5TextConfig,
    Qwen3Config,
)
from triptych_engine.runner import builder
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.kernels import LINEAR_METHODS, CpuKernels
from triptych_engine.runner.cpu.layer_kernel import LayerKernel
from triptych_engine.runner.cpu.linear import packing
from triptych_engine.runner.fusion.layer import FusedDecoderLayer
from triptych_engine.runner.input_batch import StepInputs
from triptych_engine.runner.launched_step import LaunchedStep
from triptych_engine.runner.model_runner import ModelRunner

_SHAPE = {
    "vocab_size": 97, "hidden_size": 40, "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "eos_token_id": 2, "bos_token_id": 1,
    "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS = [
    a_tiny_llama_config(),
    a_tiny_llama_config(num_key_value_heads=4, hidden_size=72, intermediate_size=40),
    Qwen2Config(**_SHAPE),  # biases
    Qwen3Config(**_SHAPE),  # norms of queries and keys
    MistralConfig(**_SHAPE, sliding_window=7),
    # A convolution in the place of the first attention.
    Lfm2Config(**(_SHAPE | {"hidden_size": 64}), layer_types=["conv", "full_attention"], conv_bias=True, conv_L_cache=4),
    # A gated delta rule, and an attention whose output has a gate.
    Qwen3_5TextConfig(
        **_SHAPE,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        linear_key_head_dim=16,
        linear_value_head_dim=48,
    ),
    # Mamba-2, an attention that does not rotate, and factors.
    GraniteMoeHybridConfig(
        **(_SHAPE | {"hidden_size": 64}),
        layer_types=["linear_attention", "full_attention"],
        num_local_experts=0,
        shared_intermediate_size=72,
        mamba_n_heads=6,
        mamba_d_head=32,
        mamba_d_state=48,
        mamba_n_groups=1,
        mamba_expand=3,
        mamba_proj_bias=True,
        embedding_multiplier=3.0,
        logits_scaling=2.0,
        residual_multiplier=0.3,
        attention_multiplier=0.2,
    ),
]


def _logits(path: Path, dtype: torch.dtype, *, whole: bool, quantization: str = "none") -> list[torch.Tensor]:
    """Of each step of three ragged requests, computed in chunks of at most 16 tokens."""
    runner = build_runner(RunnerConfig(path, "test", 256, 8, 64, 16, 1 << 20, dtype=dtype, quantization=quantization))
    layers = [module for module in runner._model.model.modules() if isinstance(module, FusedDecoderLayer)]
    assert len(layers) == 2
    for layer in layers:
        assert layer.kernel is not None
        if not whole:
            layer.kernel = runner._model.decoder = None
    seen: list[torch.Tensor] = []
    launch = runner._sampler.launch

    def noting(step: LaunchedStep, inputs: StepInputs, logits: torch.Tensor, draft_logits: None) -> None:
        seen.append(logits.clone())
        forced = torch.zeros_like(logits)  # the same tokens whatever the rounding
        forced[:, 3 + 7 * len(seen) % 90] = 1.0
        launch(step, inputs, forced, draft_logits)

    runner._sampler.launch = noting
    num_states = runner.size.num_states
    scheduler = a_scheduler(block_size=16, max_num_batched_tokens=16, num_states=num_states)
    for name, length in (("a", 21), ("b", 1), ("c", 9)):
        scheduler.add(a_request(name, [3 + (7 * i + length) % 90 for i in range(length)], max_tokens=12))
    while scheduler.live_request_ids:
        scheduled = scheduler.schedule()
        scheduler.update_from_output(scheduled, runner.execute(scheduled))
    return seen


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.model_type}-{config.hidden_size}")
def test_a_layer_as_one_kernel_computes_what_its_parts_do(config: PretrainedConfig, quantization: str, tmp_path: Path):
    path = save_random_model(tmp_path, config, dtype=torch.bfloat16)
    expected, got = (_logits(path, torch.float32, whole=whole, quantization=quantization) for whole in (False, True))
    assert len(expected) == len(got) >= 12
    for wanted, have in zip(expected, got, strict=True):
        torch.testing.assert_close(have, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", LINEAR_METHODS)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.model_type}-{config.hidden_size}")
def test_a_bfloat16_layer_is_nearer_to_float32_as_one_kernel(
    config: PretrainedConfig,
    method: str,
    emulating: Callable[[str], CpuKernels],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    path = save_random_model(tmp_path, config, dtype=torch.bfloat16)
    exact = _logits(path, torch.float32, whole=False)
    monkeypatch.setattr(builder, "load_kernels", lambda: emulating(method))
    # On a CPU with bfloat16 instructions, kernels that do not use them would leave the products to oneDNN.
    monkeypatch.setattr(packing, "cpu_computes_bfloat16", lambda: method != "fp32")
    parts, got = _logits(path, torch.bfloat16, whole=False), _logits(path, torch.bfloat16, whole=True)
    assert len(exact) == len(parts) == len(got) >= 12
    exact, parts, got = (torch.cat(logits) for logits in (exact, parts, got))
    error = (got - exact).norm()
    assert error < 1.1 * (parts - exact).norm()
    assert error < 2e-2 * exact.norm()


@pytest.mark.parametrize("method", LINEAR_METHODS)
def test_an_activation_in_the_products_epilogue_is_the_activation(
    method: str, emulating: Callable[[str], CpuKernels], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Which takes an MLP of whole panels; with few rows, with several passes of rows, and with more than a block of them."""
    config = a_tiny_llama_config(intermediate_size=96, initializer_range=0.2, max_position_embeddings=1024)
    path = save_random_model(tmp_path, config, dtype=torch.bfloat16)

    def load(dtype: torch.dtype) -> ModelRunner:
        return build_runner(RunnerConfig(path, "test", 1024, 8, 1024, 16, 1 << 22, dtype=dtype))

    exact = load(torch.float32)
    monkeypatch.setattr(builder, "load_kernels", lambda: emulating(method))
    monkeypatch.setattr(packing, "cpu_computes_bfloat16", lambda: method != "fp32")
    rounded = load(torch.bfloat16)
    layers = [module for module in rounded._model.model.modules() if isinstance(module, FusedDecoderLayer)]
    assert all(layer.kernel is not None for layer in layers)
    for num_tokens in (3, 4, 13, 33, 600):
        prompt = [(7 * i) % 90 for i in range(num_tokens)]
        wanted, got = exact.prompt_logits(prompt), rounded.prompt_logits(prompt)
        assert ((got - wanted).norm(dim=-1) < 5e-2 * wanted.norm(dim=-1)).all()


@pytest.mark.parametrize("method", ["dot", "tiles"])
def test_a_float32_models_products_are_not_rounded_where_the_cpu_multiplies_bfloat16(
    method: str, emulating: Callable[[str], CpuKernels], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Rounded from some number of rows on, a text would depend on what else is computed with it."""
    path = save_random_model(tmp_path, a_tiny_llama_config(), dtype=torch.bfloat16)
    monkeypatch.setattr(builder, "load_kernels", lambda: emulating(method))
    runner = build_runner(RunnerConfig(path, "test", 256, 8, 64, 16, 1 << 20, dtype=torch.float32))
    assert all(layer.kernel is not None for layer in runner._model.model.modules() if isinstance(layer, FusedDecoderLayer))
    prompt = [(7 * i) % 90 for i in range(40)]
    assert torch.equal(runner.prompt_logits(prompt), runner.prompt_logits(prompt, num_chunks=len(prompt)))


def test_a_kernel_that_computes_something_else_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    path = save_random_model(tmp_path, a_tiny_llama_config(), dtype=torch.bfloat16)
    compute = LayerKernel.compute

    def wrong_beyond_few_rows(self: LayerKernel, backend: CpuAttention, x: torch.Tensor, *tables: torch.Tensor) -> torch.Tensor:
        out = compute(self, backend, x, *tables)
        out[8:, -1] += 1.0
        return out

    monkeypatch.setattr(LayerKernel, "compute", wrong_beyond_few_rows)
    monkeypatch.setattr(packing, "cpu_computes_bfloat16", lambda: False)  # on ARM, oneDNN would compute the products
    runner = build_runner(RunnerConfig(path, "test", 256, 8, 64, 16, 1 << 20, dtype=torch.bfloat16))
    layers = [module for module in runner._model.model.modules() if isinstance(module, FusedDecoderLayer)]
    assert [layer.kernel for layer in layers] == [None, None]
    assert "layer 1 as a whole is not what its parts are" in caplog.text
