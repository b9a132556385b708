"""Adapters as PEFT saves them, with random weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


@contextmanager
def _without_warnings() -> Iterator[None]:
    """PEFT uses what transformers deprecates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@_without_warnings()
def save_adapter(
    base: Path, folder: Path, seed: int, targets: Sequence[str] | str = ALL, *, std: float = 0.1, **options: Any
) -> Path:
    """An adapter of the model in `base`. options: of LoraConfig. Returns its folder."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    modules = targets if isinstance(targets, str) else list(targets)
    options = {"task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "target_modules": modules} | options
    adapted = get_peft_model(model, LoraConfig(**options))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.copy_(std * torch.randn(parameter.shape, generator=generator))
    adapted.save_pretrained(str(folder))
    return folder


@_without_warnings()
@torch.inference_mode()
def peft_logits(base: Path, folder: Path | None, token_ids: Sequence[int]) -> torch.Tensor:
    """[num_tokens, vocab_size], float32: what transformers and PEFT compute; without a folder only transformers."""
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if folder is not None:
        model = PeftModel.from_pretrained(model, folder)
    logits: torch.Tensor = model.eval()(torch.tensor([list(token_ids)])).logits[0]
    return logits
