"""Tiny configurations of families with recurrent layers."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import PretrainedConfig

from support.builders.newer_text_families import EXPERTS, LATENT, ROUTED
from support.builders.text_families import COMMON, HEAD_16

_DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 32,
    "mamba_n_groups": 2,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
_ALTERNATING = ["linear_attention", "full_attention", "linear_attention"]

HYBRIDS: dict[str, PretrainedConfig] = {
    "bailing-hybrid": transformers.BailingHybridConfig(
        **LATENT, **ROUTED, linear_num_heads=4, linear_head_dim=16, layer_types=_ALTERNATING
    ),
    "bamba": transformers.BambaConfig(**COMMON, **_MAMBA, attn_layer_indices=[1], attn_rotary_emb=16),
    "falcon-h1": transformers.FalconH1Config(**HEAD_16, **_MAMBA, mamba_d_ssm=128),
    "granite4-hybrid": transformers.GraniteMoeHybridConfig(
        **COMMON, **_MAMBA, layer_types=_ALTERNATING, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=16
    ),
    "granite4-dense": transformers.GraniteMoeHybridConfig(
        **COMMON,
        **{**_MAMBA, "mamba_n_groups": 1},
        layer_types=_ALTERNATING,
        num_local_experts=0,
        shared_intermediate_size=48,
        embedding_multiplier=3.0,
        logits_scaling=2.0,
        residual_multiplier=0.5,
    ),
    "kimi-linear": transformers.KimiLinearConfig(
        **LATENT, **ROUTED, linear_num_heads=4, linear_head_dim=16, layer_types=_ALTERNATING
    ),
    "lfm2": transformers.Lfm2Config(**COMMON, layer_types=["conv", "full_attention", "conv"]),
    "lfm2-moe": transformers.Lfm2MoeConfig(**COMMON, **EXPERTS, num_dense_layers=1, layer_types=["conv", "full_attention", "conv"]),
    "lfm3": transformers.Lfm3Config(**COMMON),
    "nemotron-h": transformers.NemotronHConfig(
        **{**HEAD_16, **ROUTED},
        mamba_num_heads=8,
        mamba_head_dim=16,
        ssm_state_size=32,
        n_groups=2,
        chunk_size=8,
        moe_shared_expert_intermediate_size=16,
        layers_block_type=["linear_attention", "mlp", "full_attention", "moe"],
    ),
    "olmo-hybrid": transformers.OlmoHybridConfig(**{**COMMON, **_DELTA_NET, "linear_num_value_heads": 2}),
    "qwen3-next": transformers.Qwen3NextConfig(**{**HEAD_16, **_DELTA_NET}, **EXPERTS, shared_expert_intermediate_size=16),
    "qwen3.5-text": transformers.Qwen3_5TextConfig(**{**HEAD_16, **_DELTA_NET}),
    "qwen3.5-moe-text": transformers.Qwen3_5MoeTextConfig(
        **{**HEAD_16, **_DELTA_NET}, **EXPERTS, shared_expert_intermediate_size=16
    ),
}
