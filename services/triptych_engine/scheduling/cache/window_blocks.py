"""How many KV blocks a window takes. The runner divides its memory by it, and the scheduler reserves blocks by it."""

from __future__ import annotations

#: Kernels read keys from a multiple of so many on, those before the window too, which they mask: kGroupsAtOnce of
#: csrc/attention/attention_tile.h.
KEYS_AT_ONCE = 32


def blocks_of_window(window: int, step_tokens: int, block_size: int, keys_at_once: int = KEYS_AT_ONCE) -> int:
    """How many blocks the window of the first of so many tokens and these tokens take at most, wherever they begin."""
    return -(-(window - 1 + step_tokens + keys_at_once - 1) // block_size) + 1
