"""Progress of a call over many prompts: one line with the number of prompts and the tokens per second."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from typing import Any

#: True for a bar of tqdm, False for none, or a function with tqdm's arguments.
UseTqdm = bool | Callable[..., Any]


class ProgressBar:
    """The bar that a caller of `LLM` chose. It is told of each prompt that is done."""

    def __init__(self, use_tqdm: UseTqdm, prompts: object) -> None:
        self._bar: Any = None
        if use_tqdm:
            make = use_tqdm if callable(use_tqdm) else _tqdm()
            # Generators do not know their length.
            total = operator.length_hint(prompts) or None
            self._bar = make(total=total, desc="Processed prompts", unit=" prompts", dynamic_ncols=True, postfix=_speed(0, 0, 1))
        self._start_s = time.monotonic()
        self._num_input = self._num_output = 0

    def update(self, num_input_tokens: int, num_output_tokens: int) -> None:
        """One more prompt is done."""
        self._num_input += num_input_tokens
        self._num_output += num_output_tokens
        if self._bar is not None:
            elapsed_s = max(time.monotonic() - self._start_s, 1e-9)
            # The bar is drawn by the update, and not more often than tqdm wants.
            self._bar.set_postfix_str(_speed(self._num_input, self._num_output, elapsed_s), refresh=False)
            self._bar.update(1)

    def close(self) -> None:
        """End the line."""
        if self._bar is not None:
            self._bar.close()


def _speed(num_input: int, num_output: int, elapsed_s: float) -> str:
    return f"input: {num_input / elapsed_s:.1f} toks/s, output: {num_output / elapsed_s:.1f} toks/s"


def _tqdm() -> Callable[..., Any]:
    from tqdm.auto import tqdm

    return tqdm
