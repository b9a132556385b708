"""What chooses the tokens of a step: kernels on CPUs, tensor operations elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from triptych_engine.runner.sampling.rules.token_rules import StepRules
from triptych_engine.scheduling.request import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """The rows of the batch for which a step samples. A row without rules may have several lines, one for each token that is drawn
    for it."""

    idx_mapping: np.ndarray  # [num_lines] int64, line of the logits -> row of the batch
    positions: np.ndarray  # [num_lines] int64, number of output tokens of the sequence before the one that is drawn
    rules: StepRules | None = None  # of rows with a constraint or bad token sequences


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tokens of a step, on the device."""

    token_ids: torch.Tensor  # [num_lines] int64
    is_invalid: torch.Tensor  # [num_lines] bool: one of the logits is NaN, or the largest that may be chosen is not finite
    #: [n, vocab_size] logits before any edit, and the lines [num_kept] int64 among them that were to be kept.
    raw: torch.Tensor
    raw_lines: np.ndarray


class Choice(Protocol):
    """The state of the rows of the batch, and the choice of their tokens."""

    def add(self, row: int, sampling: SamplingParams, token_ids: list[int], num_prompt_tokens: int) -> None:
        """Add a sequence in a free row. Does not wait for the device.

        Args:
            token_ids: its prompt and, after a preemption, its output so far.
        """
        ...

    def remove(self, row: int) -> None:
        """Remove the sequence in a row."""
        ...

    def choose(self, logits: torch.Tensor, metadata: SamplingMetadata, kept: np.ndarray) -> Chosen:
        """Choose a token for each line, without waiting for the device. Penalties count it from now on.

        Args:
            logits: [num_lines, vocab_size], any float type. They may be edited in place.
            kept: [num_kept] int64, lines whose logits are needed before any edit.
        """
        ...
