"""The cosines and sines of a step's positions."""

from __future__ import annotations

from typing import Any

import torch


class RotaryTables:
    """Cosines and sines of a step. All layers get the same ones, so they are made dense only once."""

    def __init__(self) -> None:
        self._given: Any = None
        self._dense: tuple[torch.Tensor, torch.Tensor] | None = None

    def dense(self, position_embeddings: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, [1, num_tokens, rotary_dim] each, as [num_tokens, rotary_dim] fp32, dense."""
        if self._dense is None or position_embeddings is not self._given:
            cos, sin = (part.view(part.shape[-2:]).float().contiguous() for part in position_embeddings)
            self._given, self._dense = position_embeddings, (cos, sin)
        return self._dense
