"""Prepares a model for adapters."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from triptych_engine.runner.lora.adapter import read_adapter
from triptych_engine.runner.lora.directory import LoraDirectory
from triptych_engine.runner.lora.step import add_updates
from triptych_engine.runner.lora.store import LoraStore
from triptych_engine.runner.lora.targets import LoraTarget, lora_targets

log = logging.getLogger(__name__)


def enable_lora(
    model: PreTrainedModel, run: Callable[[], object], num_tokens: int, folder: Path, max_loras: int, *, uses_kernels: bool
) -> LoraStore:
    """Prepare a model for the adapters of a directory; returns their store.

    Args:
        run: computes a prompt of `num_tokens` tokens, of which only the last one's logits are wanted. It shows which layers get
            each token once. Others cannot be changed: single experts, and what comes after the wanted tokens are picked.
        uses_kernels: kernels of decoder layers are used where there are any.
    """
    found = lora_targets(model, model.get_output_embeddings(), uses_kernels=uses_kernels)
    num_rows = Counter[nn.Module]()

    def count(product: nn.Module, args: Any, output: torch.Tensor) -> None:
        num_rows[product] += args[0].numel() // args[0].shape[-1]

    hooks = [product.register_forward_hook(count) for product in {target.product for target in found.values()}]
    run()
    for hook in hooks:
        hook.remove()
    targets = {name: target for name, target in found.items() if target.place is not None or num_rows[target.product] == num_tokens}
    for product in {target.product for target in targets.values() if target.place is None}:
        product.register_forward_hook(add_updates)
    log.info("adapters of %s can change %d linear layers", folder, len(targets))
    read = functools.partial(read_adapter, targets=targets, dtype=_dtype(model, targets))
    return LoraStore(LoraDirectory(folder), read, max_loras)


def _dtype(model: PreTrainedModel, targets: dict[str, LoraTarget]) -> torch.dtype:
    """The dtype of adapters: the model's; bfloat16 beside quantised weights, which are coarser than that."""
    is_quantized = any(getattr(target.product, "packed", None) is not None for target in targets.values())
    return torch.bfloat16 if is_quantized and model.device.type == "cpu" else model.dtype
