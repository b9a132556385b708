"""Tiny configurations of many model families, and ragged prompts for them."""

from __future__ import annotations

import transformers
from transformers import PretrainedConfig

from support.builders.engine import a_tiny_llama_config

COMMON = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEAD_16 = {**COMMON, "head_dim": 16}
WINDOW = {"sliding_window": 8}

FAMILIES: dict[str, PretrainedConfig] = {
    "llama": a_tiny_llama_config(),
    "llama-tied": a_tiny_llama_config(tie_word_embeddings=True),
    "llama-8-dim-heads": a_tiny_llama_config(head_dim=8),
    "llama3-rope": a_tiny_llama_config(
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    ),
    "mistral-window": transformers.MistralConfig(**HEAD_16, **WINDOW),
    "qwen2": transformers.Qwen2Config(**COMMON),
    "qwen3": transformers.Qwen3Config(**HEAD_16),
    "qwen3-moe": transformers.Qwen3MoeConfig(**HEAD_16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
    "mixtral": transformers.MixtralConfig(**HEAD_16, num_local_experts=4, num_experts_per_tok=2),
    "gemma": transformers.GemmaConfig(**HEAD_16),
    "gemma2": transformers.Gemma2Config(**HEAD_16, **WINDOW, query_pre_attn_scalar=16, layer_types=None),
    "gemma3-text": transformers.Gemma3TextConfig(
        **HEAD_16, **WINDOW, query_pre_attn_scalar=16, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    ),
    "phi": transformers.PhiConfig(**COMMON),
    "phi3": transformers.Phi3Config(**COMMON),
    "olmo2": transformers.Olmo2Config(**COMMON),
    "granite": transformers.GraniteConfig(**COMMON, logits_scaling=2.0, residual_multiplier=0.5, embedding_multiplier=3.0),
    "cohere2": transformers.Cohere2Config(**HEAD_16, **WINDOW, logit_scale=0.5),
    "starcoder2": transformers.Starcoder2Config(**COMMON),
    "stablelm": transformers.StableLmConfig(**COMMON),
    "gpt-neox": transformers.GPTNeoXConfig(**{k: v for k, v in COMMON.items() if k != "num_key_value_heads"}),
    "gpt2": transformers.GPT2Config(vocab_size=97, n_positions=256, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2),
    "opt": transformers.OPTConfig(
        vocab_size=97,
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        word_embed_proj_dim=32,
    ),
    "gpt-oss": transformers.GptOssConfig(**HEAD_16, **WINDOW, num_local_experts=4, num_experts_per_tok=2),
    "smollm3": transformers.SmolLM3Config(**COMMON),
    "glm4": transformers.Glm4Config(**HEAD_16),
    "deepseek-v3": transformers.DeepseekV3Config(
        **{**COMMON, "num_key_value_heads": 4},
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        first_k_dense_replace=1,
    ),
}
#: Token ids. The second shares two blocks of 16 tokens with the first.
PROMPTS = [[(7 * i + 3) % 97 for i in range(45)], [(7 * i + 3) % 97 for i in range(33)] + [5, 50, 90], [11, 3]]
