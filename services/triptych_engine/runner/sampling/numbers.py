"""Random numbers that are a pure function of (seed, position)."""

from __future__ import annotations

import numpy as np


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
