"""Lets a loaded model compute with integers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from triptych_engine.runner.cpu.linear.quant import QuantLinear
from triptych_engine.runner.fusion.layer import join_layers
from triptych_engine.runner.fusion.modules import LinearPart
from triptych_engine.runner.verdicts import Verdicts


@dataclass(frozen=True, slots=True)
class Quantized:
    """Statistics of a model's quantised linear layers."""

    num_layers: int  # layers that are combined into one count once
    bytes_before: int
    bytes_after: int


def quantize(
    model: PreTrainedModel, token_ids: torch.Tensor, position_ids: torch.Tensor, verdicts: Verdicts | None = None
) -> Quantized:
    """Quantise the inputs, and if necessary the weights, of the layers that `optimize` prepared, in place.

    The other arguments are the same as for `optimize`.
    """
    layers: dict[QuantLinear, None] = {}
    for module in model.modules():
        layer = module.product if isinstance(module, LinearPart) else module
        if isinstance(layer, QuantLinear):
            layers[layer] = None
    sizes = [layer.quantize() for layer in layers]
    join_layers(model, token_ids, position_ids, verdicts or Verdicts())
    return Quantized(len(sizes), sum(before for before, _ in sizes), sum(after for _, after in sizes))
