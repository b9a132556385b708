"""Tiny configurations of further text families, most of 2024 to 2026."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import PretrainedConfig

from support.builders.text_families import COMMON, HEAD_16, WINDOW

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
#: As of DeepSeek: the first layer has no experts.
ROUTED: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
LATENT = {
    **COMMON,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
#: Tokens attend to eight keys. With so many heads, next to no two keys have the same score.
_INDEXER = {"index_topk": 8, "index_n_heads": 16, "index_head_dim": 16}
#: The last two of four layers attend to keys and values of earlier ones, and each layer has inputs of its own.
_SHARED = {
    **HEAD_16,
    **WINDOW,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 97,
}

NEWER_FAMILIES: dict[str, PretrainedConfig] = {
    "afmoe": transformers.AfmoeConfig(**HEAD_16, **WINDOW, **EXPERTS, num_dense_layers=1),
    "apertus": transformers.ApertusConfig(**COMMON),
    "arcee": transformers.ArceeConfig(**COMMON),
    "bitnet": transformers.BitNetConfig(**COMMON),
    "cohere": transformers.CohereConfig(**COMMON),
    "cohere2-moe": transformers.Cohere2MoeConfig(**HEAD_16, **WINDOW, **EXPERTS),
    "deepseek-v2": transformers.DeepseekV2Config(**LATENT, **ROUTED),
    "deepseek-v3.2": transformers.DeepseekV32Config(**LATENT, **ROUTED, **_INDEXER),
    "dots1": transformers.Dots1Config(**HEAD_16, **ROUTED),
    "ernie4.5": transformers.Ernie4_5Config(**HEAD_16),
    "ernie4.5-moe": transformers.Ernie4_5_MoeConfig(**COMMON, moe_num_experts=4, moe_k=2, moe_intermediate_size=16),
    "exaone4": transformers.Exaone4Config(**HEAD_16, **WINDOW),
    "exaone-moe": transformers.ExaoneMoeConfig(**HEAD_16, **WINDOW, **EXPERTS),
    "flex-olmo": transformers.FlexOlmoConfig(**COMMON, num_experts=4, num_experts_per_tok=2),
    "gemma3n-text": transformers.Gemma3nTextConfig(
        **{**_SHARED, "intermediate_size": [80] * 4},
        laurel_rank=8,
        altup_num_inputs=2,
        activation_sparsity_pattern=[0.5, 0.5, 0.0, 0.0],
    ),
    "gemma4-text": transformers.Gemma4TextConfig(**_SHARED, global_head_dim=32),
    # Embeddings of each layer, which are of 262,144 tokens by default.
    "gemma4-text-moe": transformers.Gemma4TextConfig(
        **HEAD_16,
        **WINDOW,
        global_head_dim=32,
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=16,
        vocab_size_per_layer_input=97,
    ),
    "glm": transformers.GlmConfig(**HEAD_16),
    "glm4-moe": transformers.Glm4MoeConfig(**HEAD_16, **ROUTED),
    "glm4-moe-lite": transformers.Glm4MoeLiteConfig(**LATENT, **ROUTED),
    "glm-moe-dsa": transformers.GlmMoeDsaConfig(**LATENT, **ROUTED, **_INDEXER, indexer_types=["full", "shared", "full"]),
    "granite-moe": transformers.GraniteMoeConfig(**COMMON, **_LOCAL_EXPERTS),
    "granite-moe-shared": transformers.GraniteMoeSharedConfig(**COMMON, **_LOCAL_EXPERTS, shared_intermediate_size=16),
    "helium": transformers.HeliumConfig(**HEAD_16),
    "hunyuan": transformers.HunYuanDenseV1Config(**HEAD_16),
    "hunyuan-moe": transformers.HunYuanMoEV1Config(**HEAD_16, num_experts=4, moe_topk=2, moe_intermediate_size=16),
    "hy-v3": transformers.HYV3Config(**HEAD_16, **EXPERTS),
    "jais2": transformers.Jais2Config(**COMMON),
    "laguna": transformers.LagunaConfig(**HEAD_16, **WINDOW, **EXPERTS),
    # Prompts have several chunks. The last layer attends to all tokens, and scales its queries by their positions.
    "llama4-text": transformers.Llama4TextConfig(
        **HEAD_16,
        num_local_experts=4,
        intermediate_size_mlp=32,
        no_rope_layer_interval=3,
        attention_chunk_size=16,
        floor_scale=4,
        attn_scale=0.5,
    ),
    "mellum": transformers.MellumConfig(**HEAD_16, **EXPERTS),
    "mimo-v2-flash": transformers.MiMoV2FlashConfig(**HEAD_16, **WINDOW, **ROUTED),
    "minicpm3": transformers.MiniCPM3Config(**LATENT),
    "minimax-m2": transformers.MiniMaxM2Config(**HEAD_16, **_LOCAL_EXPERTS),
    "ministral": transformers.MinistralConfig(**HEAD_16, **WINDOW),
    "ministral3": transformers.Ministral3Config(**HEAD_16),
    "nanochat": transformers.NanoChatConfig(**COMMON),
    "nemotron": transformers.NemotronConfig(**HEAD_16),
    "olmo": transformers.OlmoConfig(**COMMON),
    "olmo3": transformers.Olmo3Config(**COMMON, **WINDOW),
    "olmoe": transformers.OlmoeConfig(**COMMON, num_experts=4, num_experts_per_tok=2),
    "phi4-multimodal-text": transformers.Phi4MultimodalConfig(
        **COMMON,
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 56,
        },
        audio_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_blocks": 1,
            "num_attention_heads": 2,
            "ext_pw_out_channel": 32,
            "depthwise_separable_out_channel": 32,
            "nemo_conv_channels": 16,
        },
    ),
    "phimoe": transformers.PhimoeConfig(**COMMON, **_LOCAL_EXPERTS),
    "qwen2-moe": transformers.Qwen2MoeConfig(**COMMON, **EXPERTS, shared_expert_intermediate_size=16),
    "seed-oss": transformers.SeedOssConfig(**HEAD_16),
    "solar-open": transformers.SolarOpenConfig(**HEAD_16, **ROUTED),
    "vaultgemma": transformers.VaultGemmaConfig(**HEAD_16, **WINDOW, query_pre_attn_scalar=16),
    "youtu": transformers.YoutuConfig(**LATENT),
}
