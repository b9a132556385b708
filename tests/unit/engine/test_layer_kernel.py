"""A decoder layer as one kernel call computes what its parts do, in prefill, in chunks and in decoding, alone and in company."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from builders_engine import a_request, a_scheduler, a_tiny_llama_config, save_random_model
from transformers import MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config
from triptych_engine.runner.decoder_layer import FusedDecoderLayer
from triptych_engine.runner.model_runner import ModelRunner, RunnerConfig

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
]


def _logits(path: Path, *, whole: bool) -> list[torch.Tensor]:
    """Of each step of three ragged requests, computed in chunks of at most 16 tokens."""
    # Weights in bfloat16, computed in float32: what the kernel is for.
    runner = ModelRunner(RunnerConfig(path, "test", 256, 8, 64, 16, 1 << 20, dtype=torch.float32))
    runner.load()
    layers = [module for module in runner._model.model.modules() if isinstance(module, FusedDecoderLayer)]
    assert len(layers) == 2
    for layer in layers:
        assert layer._whole is not None
        if not whole:
            layer._whole = None
    seen: list[torch.Tensor] = []
    launch = runner._sampler.launch

    def noting(logits: torch.Tensor, rows: np.ndarray):
        seen.append(logits.clone())
        return launch(logits, rows)

    runner._sampler.launch = noting
    scheduler = a_scheduler(block_size=16, max_num_batched_tokens=16)
    for name, length in (("a", 21), ("b", 1), ("c", 9)):
        scheduler.add(a_request(name, [3 + (7 * i + length) % 90 for i in range(length)], max_tokens=12))
    while scheduler.live_request_ids:
        scheduled = scheduler.schedule()
        scheduler.update(scheduled, runner.execute(scheduled))
    return seen


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.model_type}-{config.hidden_size}")
def test_a_layer_as_one_kernel_computes_what_its_parts_do(config: PretrainedConfig, tmp_path: Path):
    path = save_random_model(tmp_path, config, dtype=torch.bfloat16)
    expected, got = _logits(path, whole=False), _logits(path, whole=True)
    assert len(expected) == len(got) >= 12
    for wanted, have in zip(expected, got, strict=True):
        torch.testing.assert_close(have, wanted, rtol=1e-4, atol=1e-4)
