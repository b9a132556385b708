"""Progress of a call over many prompts: one line with the number of prompts and the tokens per second."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from typing import Any, Protocol


class ProgressBar(Protocol):
    """Is told of each prompt that is done."""

    def update(self, num_input_tokens: int, num_output_tokens: int) -> None: ...
    def close(self) -> None: ...


class SilentBar:
    """Shows nothing."""

    def update(self, num_input_tokens: int, num_output_tokens: int) -> None:
        pass

    def close(self) -> None:
        pass


class TqdmBar:
    """A bar of tqdm.

    Args:
        make: tqdm, or a function with its arguments.
        total: number of prompts; None if it is not known.
    """

    def __init__(self, make: Callable[..., Any], total: int | None, unit: str) -> None:
        self._bar = make(total=total, desc="Processed prompts", unit=unit, dynamic_ncols=True, postfix=_speed(0, 0, 1))
        self._start_s = time.monotonic()
        self._num_input = self._num_output = 0

    def update(self, num_input_tokens: int, num_output_tokens: int) -> None:
        self._num_input += num_input_tokens
        self._num_output += num_output_tokens
        elapsed_s = max(time.monotonic() - self._start_s, 1e-9)
        # The bar is drawn by the update, and not more often than tqdm wants.
        self._bar.set_postfix_str(_speed(self._num_input, self._num_output, elapsed_s), refresh=False)
        self._bar.update(1)

    def close(self) -> None:
        self._bar.close()


def _speed(num_input: int, num_output: int, elapsed_s: float) -> str:
    return f"input: {num_input / elapsed_s:.1f} toks/s, output: {num_output / elapsed_s:.1f} toks/s"


def progress_bar(use_tqdm: bool | Callable[..., Any], prompts: object, unit: str = " prompts") -> ProgressBar:
    """The bar that a caller of `LLM` chose: tqdm's own, one of a function with tqdm's arguments, or none."""
    if not use_tqdm:
        return SilentBar()
    make = use_tqdm if callable(use_tqdm) else _tqdm()
    # Generators do not know their length.
    return TqdmBar(make, operator.length_hint(prompts) or None, unit)


def _tqdm() -> Callable[..., Any]:
    from tqdm.auto import tqdm

    return tqdm
