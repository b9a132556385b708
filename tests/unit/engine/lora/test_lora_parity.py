"""Sequences with adapters: the logits are PEFT's, for every mixture of adapters in one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.builders.hybrid_families import HYBRIDS
from support.builders.lora import ALL, ATTENTION, peft_logits, save_adapter
from support.lora import all_logits, lora_runner
from transformers import Gemma3TextConfig, ModernBertDecoderConfig, Phi3Config, Qwen3Config, Qwen3MoeConfig
from triptych.errors import InvalidRequestError
from triptych_engine.runner.fusion.layer import FusedDecoderLayer

_SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MODELS: dict[str, Callable[[], Any]] = {
    "llama": a_tiny_llama_config,
    "qwen3": lambda: Qwen3Config(**_SIZES),
    "gemma3": lambda: Gemma3TextConfig(**_SIZES, sliding_window=32, query_pre_attn_scalar=16),
    "phi3": lambda: Phi3Config(**{key: value for key, value in _SIZES.items() if key != "head_dim"}),
    "qwen3_moe": lambda: Qwen3MoeConfig(**_SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
    "qwen3_5": lambda: HYBRIDS["qwen3.5-text"],
    "lfm2": lambda: HYBRIDS["lfm2"],
    "granite4": lambda: HYBRIDS["granite4-dense"],
}
TARGETS: dict[str, Sequence[str]] = {
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "qwen3_moe": ATTENTION,
    "lfm2": ("in_proj", "q_proj", "k_proj", "v_proj", "out_proj", "w1", "w2", "w3"),
    "granite4": (*ATTENTION, "in_proj", "out_proj", "input_linear", "output_linear"),
    "qwen3_5": (*ALL, "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"),
}
#: Ranks below, at and above a vector, in one batch.
RANKS = (1, 8, 17, 40)


def prompts_of(*lengths: int) -> list[list[int]]:
    return [[(7 * i + 13 * number) % 90 for i in range(length)] for number, length in enumerate(lengths)]


@pytest.mark.parametrize(("name", "weights", "attention"), [
    *((name, torch.bfloat16, "auto") for name in MODELS),
    ("llama", torch.float32, "auto"), ("llama", torch.bfloat16, "torch"), ("qwen3_5", torch.bfloat16, "torch"),
])  # fmt: skip
def test_the_logits_are_pefts_row_by_row(name: str, weights: torch.dtype, attention: str, tmp_path: Path):
    """Computed in float32. Weights that are bfloat16 go through the kernels of decoder layers, where the family has them."""
    base = save_random_model(tmp_path / "base", MODELS[name](), dtype=weights)
    for seed, rank in enumerate(RANKS):
        save_adapter(base, tmp_path / "loras" / f"r{rank}", seed, TARGETS.get(name, ALL), r=rank)
    runner = lora_runner(base, tmp_path / "loras", attention=attention)
    names = [None, *(f"r{rank}" for rank in RANKS), "r8", None]
    prompts = prompts_of(5, 1, 33, 7, 2, 6, 1)
    folders = [None if one is None else tmp_path / "loras" / one for one in names]
    expected = [peft_logits(base, folder, prompt) for folder, prompt in zip(folders, prompts, strict=True)]
    for order in (range(len(names)), [3, 0, 6, 5, 2, 1, 4]):
        logits = all_logits(runner, [prompts[one] for one in order], [names[one] for one in order])
        for got, one in zip(logits, order, strict=True):
            torch.testing.assert_close(got, expected[one], atol=1e-4, rtol=1e-4)
    layers = [module for module in runner._model.model.modules() if isinstance(module, FusedDecoderLayer)]
    has_kernels = bool(layers) and all(layer.kernel is not None for layer in layers)
    with_kernels = "llama", "qwen3", "lfm2", "granite4", "qwen3_5"
    assert has_kernels == (name in with_kernels and weights == torch.bfloat16 and attention == "auto")


def test_layers_behind_the_wanted_tokens_are_no_layers_of_tokens(tmp_path: Path):
    """Their rows are not those of the step: an adapter would change other sequences."""
    config = ModernBertDecoderConfig(
        vocab_size=97, hidden_size=64, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=3, sep_token_id=4,
    )  # fmt: skip
    base = save_random_model(tmp_path / "base", config)
    save_adapter(base, tmp_path / "loras" / "head", 0, ["dense"])
    save_adapter(base, tmp_path / "loras" / "inside", 0, ["Wi", "Wo", "q_proj"])
    runner, prompts = lora_runner(base, tmp_path / "loras"), prompts_of(3, 5)
    assert runner.loras is not None
    with pytest.raises(InvalidRequestError, match=r"it changes lm_head\.dense, which is no linear layer"):
        runner.loras.load("head").result(60)
    for got, adapter, prompt in zip(all_logits(runner, prompts, ["inside", None]), ["inside", None], prompts, strict=True):
        folder = None if adapter is None else tmp_path / "loras" / adapter
        torch.testing.assert_close(got, peft_logits(base, folder, prompt), atol=1e-4, rtol=1e-4)
