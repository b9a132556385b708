"""Draws tokens from distributions, with numbers that are a pure function of (seed, position)."""

from __future__ import annotations

import numpy as np
import torch

from triptych_engine.runner.transfer import HostToDevice

#: Initial number of candidates to sort when top-p or min-p cuts the distribution; it grows until the cut is among them.
_FIRST_CANDIDATES = 256


def uniform(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """One number in [0, 1) for each (seed, position), by SplitMix64 (Steele, Lea, Flood 2014).

    Args:
        seeds, positions: [n] uint64.

    Returns:
        [n] float64.
    """
    with np.errstate(over="ignore"):
        x = _mix(seeds) + (positions + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        return (_mix(x) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def draw(logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Draw a token for each row from all tokens. logits: [n, vocab_size], numbers: [n] in [0, 1) -> [n] int64."""
    return _pick(logits.softmax(-1), numbers)


def draw_cut(logits: torch.Tensor, numbers: torch.Tensor, cuts: np.ndarray, transfer: HostToDevice) -> torch.Tensor:
    """Draw a token for each row from those that min-p, top-k and top-p leave. Shapes as for `draw`.

    On a CPU, only the likeliest candidates of each row are sorted. On other devices, each row would have to wait for the device to
    see whether the candidates are enough. So all rows are sorted completely there.

    Args:
        cuts: [n, 3] top-k (0: all tokens), top-p and min-p of each row.
    """
    if logits.device.type == "cpu":
        rows = zip(logits, cuts.tolist(), numbers, strict=True)
        return torch.stack([_draw_row(line, int(top_k), top_p, min_p, number) for line, (top_k, top_p, min_p), number in rows])
    return draw_sorted(logits, numbers, cuts, transfer)


def draw_sorted(logits: torch.Tensor, numbers: torch.Tensor, cuts: np.ndarray, transfer: HostToDevice) -> torch.Tensor:
    """`draw_cut` for all rows at once."""
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


def _draw_row(logits: torch.Tensor, top_k: int, top_p: float, min_p: float, number: torch.Tensor) -> torch.Tensor:
    """Draw one token from those that min-p, top-k and top-p leave.

    Only the likeliest candidates are sorted. Their number grows until the cut is among them, so the result is that of a full sort.
    """
    vocab_size = logits.shape[-1]
    log_total = logits.logsumexp(-1)
    num_candidates = min(vocab_size, top_k or _FIRST_CANDIDATES)
    while True:
        values, ids = logits.topk(num_candidates)
        probabilities = (values - log_total).double().exp()
        keep = probabilities >= min_p * probabilities[0]
        all_survivors_seen = bool(top_k) or not bool(keep[-1]) or num_candidates == vocab_size
        # Probability mass that top-k and min-p leave. It is known once all such tokens are candidates; with neither it is 1.
        total = probabilities[keep].sum() if all_survivors_seen else probabilities.new_ones(())
        before = probabilities.cumsum(-1) - probabilities
        keep_top_p = keep & (before < top_p * total)
        cut_is_inside = not bool(keep_top_p[-1])
        if all_survivors_seen or (cut_is_inside and not min_p):
            break
        num_candidates = min(vocab_size, num_candidates * 8)
    keep_top_p[0] = True
    return ids[_pick((probabilities * keep_top_p)[None], number[None])[0]]
