"""Families that take media, computed by the parts of their decoder: the bits of their own forward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.builders.multimodal import build_checkpoint
from triptych_common.host.cpu import isas_of_this_cpu
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.fusion.layer import first_tokens

NUM_TOKENS = 20


@pytest.mark.skipif(not isas_of_this_cpu(), reason="there are no kernels for this CPU")
@pytest.mark.parametrize("with_embeddings", [False, True])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "internvl", "qwen2_audio"])
def test_tokens_and_embeddings_with_the_positions_of_media(family: str, with_embeddings: bool, tmp_path: Path) -> None:
    path = build_checkpoint(family, tmp_path)
    weights = path / "model.safetensors"  # in bfloat16, so that the kernels take them on every CPU
    save_file({name: tensor.bfloat16().contiguous() for name, tensor in load_file(weights).items()}, weights, {"format": "pt"})
    runner = build_runner(RunnerConfig(path, "test", 128, 8, 64, 16, 1 << 20, dtype=torch.float32))
    model = runner._model
    assert model.decoder is not None
    token_ids, positions = torch.arange(NUM_TOKENS) * 7 % 90, torch.arange(NUM_TOKENS)
    if model.num_position_axes:
        positions = torch.stack([positions, positions * 2 % 13, positions * 5 % 17])
    logits = []
    with torch.inference_mode():
        embeds = model.model.get_input_embeddings()(token_ids[None]) * 1.3 if with_embeddings else None
        for decoder in (model.decoder, None):
            model.decoder = decoder
            runner._backend.begin(first_tokens(NUM_TOKENS))
            logits.append(model.forward(token_ids, positions, torch.arange(NUM_TOKENS), runner._backend, embeds))
    assert torch.equal(*logits)
