"""Draws tokens from distributions. A CPU kernel draws the same tokens by the same numbers (cpu/csrc/sampling/draw.cpp)."""

from __future__ import annotations

import numpy as np
import torch

from triptych_engine.runner.transfer import HostToDevice


def draw(logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Draw a token for each row from all tokens. logits: [n, vocab_size], numbers: [n] in [0, 1) -> [n] int64."""
    return _pick(logits.softmax(-1), numbers)


def draw_sorted(logits: torch.Tensor, numbers: torch.Tensor, cuts: np.ndarray, transfer: HostToDevice) -> torch.Tensor:
    """Draw a token for each row from those that min-p, top-k and top-p leave. Shapes as for `draw`.

    All rows are sorted completely: to sort only candidates, each row would have to wait for the device to see whether they suffice.

    Args:
        cuts: [n, 3] top-k (0: all tokens), top-p and min-p of each row.
    """
    limits = cuts.copy()
    limits[limits[:, 0] == 0, 0] = logits.shape[-1]
    (on_device,) = transfer(limits)
    top_k, top_p, min_p = on_device[:, :, None].unbind(1)
    values, ids = logits.sort(-1, descending=True)
    probabilities = values.double().softmax(-1)
    keep = probabilities >= min_p * probabilities[:, :1]
    keep &= torch.arange(logits.shape[-1], device=logits.device) < top_k
    kept = probabilities * keep
    keep &= kept.cumsum(-1) - kept < top_p * kept.sum(-1, keepdim=True)
    keep[:, 0] = True
    return ids.gather(-1, _pick(probabilities * keep, numbers)[:, None])[:, 0]


def _pick(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution function: weights [n, k] (not normalised), numbers [n] in [0, 1) -> index [n]."""
    cumulative = weights.double().cumsum(-1)
    total = cumulative[:, -1:]
    index = torch.searchsorted(cumulative, numbers[:, None] * total, right=True)[:, 0]
    # Rounding could point past the last token that has any weight.
    last = (weights > 0).long().cumsum(-1).argmax(-1)
    return torch.minimum(index, last)
