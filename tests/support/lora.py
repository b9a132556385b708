"""Runs prompts with adapters through a runner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.model_runner import ModelRunner
from triptych_engine.scheduling.output import NewSequence, SchedulerOutput
from triptych_engine.scheduling.request import SamplingParams


def all_logits(runner: ModelRunner, prompts: Sequence[list[int]], names: Sequence[str | None]) -> list[torch.Tensor]:
    """[num_tokens, vocab_size] of prompts that are computed in one step, each with its adapter."""
    new, kept, first_block = [], [], 0
    size = runner.config.block_size
    for index, (prompt, name) in enumerate(zip(prompts, names, strict=True)):
        blocks = list(range(first_block, first_block := first_block + -(-len(prompt) // size)))
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        digest = ""
        if name is not None:
            assert runner.loras is not None
            kept.append(runner.loras.load(name).result(60))
            digest = kept[-1].digest
        new.append(NewSequence(str(index), prompt, len(prompt), 0, blocks, sampling, lora_digest=digest))
    runner._update_states(SchedulerOutput(new=new))
    assert not runner._errors
    scheduled = SchedulerOutput(num_scheduled_tokens={one.request_id: len(one.token_ids) for one in new})
    inputs = runner._batch.gather(scheduled)
    with torch.inference_mode():
        logits = runner._forward(inputs, np.arange(len(inputs.token_ids)), [])
    runner._update_states(SchedulerOutput(dropped=[one.request_id for one in new]))
    return list(logits.float().split([len(prompt) for prompt in prompts]))


def lora_runner(path: Path, lora_dir: Path, **options: Any) -> ModelRunner:
    options = {"dtype": torch.float32} | options
    return build_runner(RunnerConfig(path, "tiny", 256, 8, 128, 16, 1 << 22, lora_dir=lora_dir, **options))
