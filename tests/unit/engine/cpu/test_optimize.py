"""Replaced modules compute what they replace; what they cannot compute is left alone."""

from __future__ import annotations

import pytest
import torch
from support.builders.engine import a_tiny_llama_config
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    GemmaConfig,
    GPT2Config,
    GraniteConfig,
    Lfm2Config,
    Lfm3Config,
    Ministral3Config,
    MistralConfig,
    Olmo2Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.models.granite.modeling_granite import GraniteDecoderLayer
from transformers.models.llama.modeling_llama import LlamaMLP
from triptych_engine.runner.attention.paged import ATTENTION_NAME, attending
from triptych_engine.runner.cpu.fused import CpuFusedKernels
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.cpu.linear.layers import Bf16Linear, OneDnnLinear, WideHead
from triptych_engine.runner.cpu.linear.packing import can_pack, pack
from triptych_engine.runner.fusion.layer import FusedDecoderLayer
from triptych_engine.runner.fusion.modules import FusedRMSNorm, GatedMLP, LinearPart
from triptych_engine.runner.fusion.optimize import optimize
from triptych_engine.runner.lora.targets import lora_targets
from triptych_engine.runner.recurrent.attach import attach_recurrent_layers
from triptych_engine.runner.recurrent.ops import TorchRecurrentOps


def a_model(config) -> nn.Module:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()
    model.set_attn_implementation(ATTENTION_NAME)
    return model


class Attention:
    """Attends without a cache: softmax over all tokens of the batch."""

    def forward(self, layer, query, key, value, *, scaling, window, softcap, sinks):
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        weights = torch.einsum("qhd,khd->hqk", query, key.to(query.dtype)).mul(scaling).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, value.to(query.dtype)).to(value.dtype).contiguous()


TOKENS = torch.arange(20)
POSITIONS = torch.arange(0, 60, 3)[None]
SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def kinds(model: nn.Module) -> set[type]:
    return {type(module) for module in model.modules()}


def test_a_llama_is_replaced_throughout():
    model = a_model(a_tiny_llama_config())
    optimize(model, CpuFusedKernels(load_kernels()), TOKENS, POSITIONS)
    assert {FusedDecoderLayer, FusedRMSNorm, WideHead} <= kinds(model)
    assert not {"LlamaDecoderLayer", "LlamaAttention", "LlamaMLP"} & {kind.__name__ for kind in kinds(model)}
    assert model.get_input_embeddings()(torch.tensor([1])).dtype == torch.float32


def an_lfm2() -> Lfm2Config:
    config = Lfm2Config(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
    config.layer_types, config.num_key_value_heads = ["conv", "full_attention"], 2
    return config


def test_parts_are_known_by_a_familys_other_names():
    model = a_model(an_lfm2())
    attach_recurrent_layers(model)
    optimize(model, CpuFusedKernels(load_kernels()), TOKENS, POSITIONS)
    assert [type(layer) for layer in model.model.layers] == [FusedDecoderLayer, FusedDecoderLayer]
    assert [layer.cache_shape is None for layer in model.model.layers] == [True, False]
    targets = lora_targets(model, None, uses_kernels=False)
    in_both = [f"feed_forward.{name}" for name in ("w1", "w2", "w3")]
    names = {f"model.layers.0.{name}" for name in ("conv.in_proj", "conv.out_proj", *in_both)}
    names |= {f"model.layers.1.{name}" for name in (*(f"self_attn.{one}_proj" for one in ("q", "k", "v", "out")), *in_both)}
    assert targets.keys() - {"lm_head.linear"} == names


def test_a_convolution_that_differs_keeps_its_layer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TorchRecurrentOps, "conv", lambda self, x, weight, *_, **__: x[:, : len(weight)])
    model = a_model(an_lfm2())
    attach_recurrent_layers(model)
    optimize(model, CpuFusedKernels(load_kernels()), TOKENS, POSITIONS)
    assert [type(layer) is FusedDecoderLayer for layer in model.model.layers] == [False, True]


def test_a_convolution_needs_no_rotary_embedding():
    model = a_model(Lfm3Config(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        layer_types=["conv", "full_attention"], use_sandwich_norm=False, pad_token_id=0,
    ))  # fmt: skip
    attach_recurrent_layers(model)
    optimize(model, CpuFusedKernels(load_kernels()), TOKENS, POSITIONS)
    assert [type(layer) is FusedDecoderLayer for layer in model.model.layers] == [True, False]


def test_gelu_mlps_and_layer_norms_are_left_alone():
    model = a_model(
        GemmaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, head_dim=16)
    )
    optimize(model, CpuFusedKernels(load_kernels()), TOKENS, POSITIONS)
    assert GatedMLP not in kinds(model)
    assert FusedRMSNorm in kinds(model)
    gpt2 = a_model(GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=2))
    optimize(gpt2, CpuFusedKernels(load_kernels()), TOKENS, POSITIONS)
    assert FusedRMSNorm not in kinds(gpt2)
    assert gpt2.get_input_embeddings()(torch.tensor([1])).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_kernels_only_linear_layers_are_replaced_that_onednn_takes(dtype: torch.dtype):
    model = a_model(a_tiny_llama_config()).to(dtype)
    before = kinds(model)
    optimize(model, CpuFusedKernels(None), TOKENS, POSITIONS)
    if not can_pack(None, dtype):  # oneDNN takes bfloat16 only with AVX-512
        assert dtype == torch.bfloat16
        assert kinds(model) == before
        return
    assert {LinearPart, OneDnnLinear} <= kinds(model)
    assert not {GatedMLP, FusedRMSNorm, FusedDecoderLayer} & kinds(model)


LLAMA_LIKE = [
    a_tiny_llama_config(),
    a_tiny_llama_config(attention_bias=True),
    Qwen2Config(**SIZES),
    Qwen3Config(**SIZES, head_dim=16),
    MistralConfig(**SIZES, sliding_window=4),
    GraniteConfig(**SIZES, residual_multiplier=0.5, attention_multiplier=0.3),
]


@pytest.mark.parametrize("config", LLAMA_LIKE, ids=lambda config: config.model_type)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fused_layer_computes_what_it_replaces(config, dtype: torch.dtype):
    reference, model = a_model(config).float(), a_model(config).to(dtype)
    optimize(model, CpuFusedKernels(load_kernels()), TOKENS, POSITIONS)
    assert FusedDecoderLayer in kinds(model)
    with torch.inference_mode(), attending(Attention()):
        # Other tokens than those that it was tried on, at other positions.
        token_ids, positions = torch.arange(60, 90)[None], torch.arange(7, 37)[None]
        expected = reference(token_ids, position_ids=positions).logits
        got = model(token_ids, position_ids=positions).logits
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(got.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "config",
    [
        CohereConfig(**SIZES),
        Olmo2Config(**SIZES),
        Qwen3MoeConfig(**SIZES, head_dim=16, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16),
    ],
    ids=lambda config: config.model_type,
)
def test_layers_of_another_kind_are_left_alone(config):
    reference, model = a_model(config).float(), a_model(config).float()
    optimize(model, CpuFusedKernels(load_kernels()), TOKENS, POSITIONS)
    assert FusedDecoderLayer not in kinds(model)
    with torch.inference_mode(), attending(Attention()):
        torch.testing.assert_close(model(TOKENS[None]).logits, reference(TOKENS[None]).logits, rtol=1e-4, atol=1e-4)


def test_an_attention_that_changes_far_into_the_context_is_noticed():
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 2.0,
        "original_max_position_embeddings": 32,
        "llama_4_scaling_beta": 0.1,
    }
    model = a_model(Ministral3Config(**SIZES, head_dim=16, rope_parameters=rope)).float()
    optimize(model, CpuFusedKernels(load_kernels()), TOKENS, POSITIONS)
    assert FusedDecoderLayer not in kinds(model)


class OddlyScaled(GraniteDecoderLayer):
    """Its factor is not the one that its name says."""

    def forward(self, hidden_states, **kwargs):
        given, self.residual_multiplier = self.residual_multiplier, 0.25
        try:
            return super().forward(hidden_states, **kwargs)
        finally:
            self.residual_multiplier = given


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [1, 300, 3000])
def test_a_factor_is_noticed_beside_huge_channels(dtype: torch.dtype, factor: int):
    model = a_model(GraniteConfig(**SIZES, residual_multiplier=0.22)).to(dtype)
    for layer in model.model.layers:
        layer.__class__ = OddlyScaled
    model.get_input_embeddings().weight.data[:, 5] *= factor
    optimize(model, CpuFusedKernels(load_kernels()), TOKENS, POSITIONS)
    assert FusedDecoderLayer not in kinds(model)


def test_a_gated_mlp_that_bounds_its_values_is_left_alone():
    model = a_model(a_tiny_llama_config()).float()

    class BoundedMLP(LlamaMLP):
        def forward(self, x):
            return self.down_proj(self.act_fn(self.gate_proj(x)).clamp(max=16) * self.up_proj(x).clamp(-16, 16))

    for layer in model.model.layers:
        layer.mlp.__class__ = BoundedMLP
    optimize(model, CpuFusedKernels(load_kernels()), TOKENS, POSITIONS)
    assert not {GatedMLP, FusedDecoderLayer} & kinds(model)


def test_float16_models_are_left_alone():
    model = a_model(a_tiny_llama_config()).half()
    before = kinds(model)
    optimize(model, CpuFusedKernels(load_kernels()), TOKENS, POSITIONS)
    assert kinds(model) == before


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 7, 100])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (kind, dtype)
        for dtype in (torch.bfloat16, torch.float32)
        for kind in (OneDnnLinear, Bf16Linear)
        if kind is Bf16Linear or can_pack(None, dtype)
    ],
)
def test_packed_linears_side_by_side(bias: bool, num_tokens: int, dtype: torch.dtype, kind: type):
    # Weights that are bfloat16 numbers in either type.
    linears = [nn.Linear(32, size, bias=bias).bfloat16().to(dtype).requires_grad_(False) for size in (48, 9)]
    x = torch.randn(1, num_tokens, 32).to(dtype)
    expected = torch.cat([linear(x) for linear in linears], -1)
    packed = pack(load_kernels() if kind is Bf16Linear else None, *linears)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(packed(x), expected, rtol=tolerance, atol=tolerance)
    assert type(packed) is kind


def test_float32_weights_with_more_than_bfloat16_in_them_keep_it():
    linear = nn.Linear(32, 48).requires_grad_(False)
    x = torch.randn(1, 5, 32)
    packed = pack(load_kernels(), linear)
    assert type(packed) is OneDnnLinear
    torch.testing.assert_close(packed(x), linear(x), rtol=1e-6, atol=1e-6)


def test_a_shared_product_is_not_reused_for_another_input():
    model = a_model(a_tiny_llama_config()).float()  # oneDNN takes float32 on any CPU
    attention = model.model.layers[0].self_attn
    linears = [attention.q_proj, attention.k_proj, attention.v_proj]
    inputs = [torch.randn(1, 3, 32) for _ in range(2)]
    expected = [[linear(x) for linear in linears] for x in inputs]
    optimize(model, CpuFusedKernels(None), TOKENS, POSITIONS)  # kernels would take the attention away
    parts = [attention.q_proj, attention.k_proj, attention.v_proj]
    for x, wanted in zip(inputs, expected, strict=True):
        for part, one in zip(parts, wanted, strict=True):
            torch.testing.assert_close(part(x), one, rtol=2e-2, atol=2e-2)
    # Out of order, and twice.
    torch.testing.assert_close(parts[2](inputs[0]), expected[0][2], rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(parts[2](inputs[1]), expected[1][2], rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(parts[2](inputs[1]), expected[1][2], rtol=2e-2, atol=2e-2)
