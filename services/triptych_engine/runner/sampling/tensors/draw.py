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
    cumulative = kept.cumsum(-1)
    keep &= cumulative - kept < top_p * kept.sum(-1, keepdim=True)
    # Each cut leaves a number of first tokens, and one at least.
    last = keep.sum(-1, keepdim=True).clamp(min=1) - 1
    return ids.gather(-1, torch.minimum(_search(cumulative, numbers, cumulative.gather(-1, last)), last))[:, 0]


def _pick(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution function: weights [n, k] (not normalised), numbers [n] in [0, 1) -> index [n]."""
    cumulative = weights.double().cumsum(-1)
    # Rounding could point past the last token that has any weight.
    last = (torch.arange(weights.shape[-1], device=weights.device) * (weights > 0)).amax(-1, keepdim=True)
    return torch.minimum(_search(cumulative, numbers, cumulative[:, -1:]), last)[:, 0]


def _search(cumulative: torch.Tensor, numbers: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """[n, 1], the first index whose cumulative weight exceeds the number's share of the total, [n, 1]."""
    return torch.searchsorted(cumulative, numbers[:, None] * total, right=True)
