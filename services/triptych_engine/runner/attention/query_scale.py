"""Lets attentions whose queries grow with the position (Llama 4, arXiv:2501.19399) find the positions of a ragged batch.

transformers' modules count tokens from the length of their cache on. The tokens of a ragged batch have no such order, so a stand-in
for the cache says for each of them how many there are before it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def attach_positions(model: nn.Module) -> None:
    """Let the attentions of a model that scale their queries do this by the position ids of their layers, in place."""
    for layer in model.modules():
        attention: Any = getattr(layer, "self_attn", None)
        if getattr(attention, "attn_temperature_tuning", False) and not getattr(attention, "use_rope", True):
            layer.register_forward_pre_hook(_give_positions, with_kwargs=True)


def _give_positions(layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    if kwargs.get("past_key_values") is None:
        kwargs = {**kwargs, "past_key_values": _Positions(kwargs["position_ids"][0])}
    return args, kwargs


class _Positions:
    """In the place of a cache, which it does not keep.

    Args:
        positions: [num_tokens] int64.
    """

    def __init__(self, positions: torch.Tensor) -> None:
        self._positions = positions

    def get_seq_length(self, layer_idx: int = 0) -> torch.Tensor:
        """[num_tokens] int64: what is added to the place of a token in the batch to get its position."""
        return self._positions - torch.arange(len(self._positions), device=self._positions.device)

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same."""
        return key, value
