"""The adapters of the step that is computed, see runner/lora."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import numpy as np
import torch
from torch import nn


class StepAdapters(Protocol):
    """The adapters of a step's rows."""

    #: [num_tokens] int32, index of each row's adapter, or -1.
    slots: np.ndarray
    #: Address of the addresses of the adapters' updates, for kernels of decoder layers (csrc/lora.h).
    tables: int

    def add(self, product: nn.Module, x: torch.Tensor, out: torch.Tensor) -> None:
        """Add the updates of a product that no kernel includes, in place. x: [..., in_features]; out: [..., out_features]."""
        ...


_step: ContextVar[StepAdapters | None] = ContextVar("step_adapters", default=None)


def current_adapters() -> StepAdapters | None:
    """The adapters of the step; None if no sequence has one."""
    return _step.get()


@contextmanager
def adapting(step: StepAdapters | None) -> Iterator[None]:
    """Within this context, forward passes add the updates of these adapters."""
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)
