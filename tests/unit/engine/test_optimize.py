"""Replaced modules compute what they replace; what they cannot compute is left alone."""

from __future__ import annotations

import pytest
import torch
from builders_engine import a_tiny_llama_config
from torch import nn
from transformers import AutoModelForCausalLM, GemmaConfig, GPT2Config
from triptych_engine.runner.cpu_kernels import load_kernels
from triptych_engine.runner.optimize import ExactTopHead, FusedRMSNorm, GatedMLP, LinearPart, PackedLinear, optimize


def a_model(config) -> nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()


def kinds(model: nn.Module) -> set[type]:
    return {type(module) for module in model.modules()}


def test_a_llama_is_replaced_throughout():
    model = a_model(a_tiny_llama_config())
    optimize(model, load_kernels())
    assert {GatedMLP, LinearPart, FusedRMSNorm, ExactTopHead, PackedLinear} <= kinds(model)
    assert model.get_input_embeddings()(torch.tensor([1])).dtype == torch.float32


def test_gelu_mlps_and_layer_norms_are_left_alone():
    model = a_model(
        GemmaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, head_dim=16)
    )
    optimize(model, load_kernels())
    assert GatedMLP not in kinds(model)
    assert FusedRMSNorm in kinds(model)
    gpt2 = a_model(GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=2))
    optimize(gpt2, load_kernels())
    assert FusedRMSNorm not in kinds(gpt2)
    assert gpt2.get_input_embeddings()(torch.tensor([1])).dtype == torch.bfloat16


def test_without_kernels_only_linear_layers_are_replaced():
    model = a_model(a_tiny_llama_config())
    optimize(model, None)
    assert {LinearPart, PackedLinear} <= kinds(model)
    assert not {GatedMLP, FusedRMSNorm, ExactTopHead} & kinds(model)


def test_float32_models_are_left_alone():
    model = a_model(a_tiny_llama_config()).float()
    before = kinds(model)
    optimize(model, load_kernels())
    assert kinds(model) == before


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 7, 100])
def test_packed_linears_side_by_side(bias: bool, num_tokens: int):
    linears = [nn.Linear(32, size, bias=bias).bfloat16().requires_grad_(False) for size in (48, 16)]
    x = torch.randn(1, num_tokens, 32).bfloat16()
    expected = torch.cat([linear(x) for linear in linears], -1)
    torch.testing.assert_close(PackedLinear(*linears)(x), expected, rtol=2e-2, atol=2e-2)


def test_a_shared_product_is_not_reused_for_another_input():
    model = a_model(a_tiny_llama_config())
    attention = model.model.layers[0].self_attn
    linears = [attention.q_proj, attention.k_proj, attention.v_proj]
    inputs = [torch.randn(1, 3, 32).bfloat16() for _ in range(2)]
    expected = [[linear(x) for linear in linears] for x in inputs]
    optimize(model, load_kernels())
    parts = [attention.q_proj, attention.k_proj, attention.v_proj]
    for x, wanted in zip(inputs, expected, strict=True):
        for part, one in zip(parts, wanted, strict=True):
            torch.testing.assert_close(part(x), one, rtol=2e-2, atol=2e-2)
    # Out of order, and twice.
    torch.testing.assert_close(parts[2](inputs[0]), expected[0][2], rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(parts[2](inputs[1]), expected[1][2], rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(parts[2](inputs[1]), expected[1][2], rtol=2e-2, atol=2e-2)
