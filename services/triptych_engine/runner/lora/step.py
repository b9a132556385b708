"""Which rows of a step have an adapter, and their updates where torch computes the product."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from triptych_engine.runner.fusion.adapters import current_adapters

if TYPE_CHECKING:
    from triptych_engine.runner.input_batch import StepInputs
    from triptych_engine.runner.lora.adapter import LoraAdapter


class LoraStep:
    """The adapters of one step. Implements `StepAdapters`.

    Args:
        adapters: those of its sequences.
        slots: [num_tokens] int32, index of each token's adapter, or -1.
        device: of the model.
        batch_invariant: a row's result must not depend on the number of rows.
    """

    def __init__(self, adapters: list[LoraAdapter], slots: np.ndarray, device: torch.device, *, batch_invariant: bool) -> None:
        self.slots, self._adapters = slots, adapters
        self._device, self._batch_invariant = device, batch_invariant
        self._tables = (ctypes.c_void_p * len(adapters))(*(ctypes.addressof(adapter.table) for adapter in adapters))
        self.tables = ctypes.addressof(self._tables)

    @cached_property
    def _adapter_rows(self) -> list[tuple[LoraAdapter, torch.Tensor]]:
        pairs = []
        for slot, adapter in enumerate(self._adapters):
            rows = torch.from_numpy(np.flatnonzero(self.slots == slot)).to(self._device)
            pairs += [(adapter, part) for part in (rows.split(1) if self._batch_invariant else [rows])]
        return pairs

    def add(self, product: nn.Module, x: torch.Tensor, out: torch.Tensor) -> None:
        x, out = x.reshape(-1, x.shape[-1]), out.view(-1, out.shape[-1])
        if len(x) != len(self.slots):
            raise AssertionError(f"a product with adapters got {len(x)} rows in a step of {len(self.slots)} tokens")
        for adapter, rows in self._adapter_rows:
            for update in adapter.updates.get(product, ()):
                inner = nn.functional.linear(x[rows].to(update.a.dtype), update.a)
                change = nn.functional.linear(inner, update.b) * update.scale
                out[rows, update.first : update.first + len(update.b)] += change.to(out.dtype)


def add_updates(product: nn.Module, args: Any, output: torch.Tensor) -> None:
    """A forward hook of products that adapters can change and no kernel includes."""
    if (step := current_adapters()) is not None:
        step.add(product, args[0], output)


class LoraRows:
    """The adapters of the rows of the batch."""

    def __init__(self, device: torch.device, *, batch_invariant: bool) -> None:
        self._device, self._batch_invariant = device, batch_invariant
        self._adapters: dict[int, LoraAdapter] = {}  # row -> its adapter

    def add(self, row: int, adapter: LoraAdapter) -> None:
        self._adapters[row] = adapter

    def remove(self, row: int) -> None:
        self._adapters.pop(row, None)

    @property
    def order(self) -> Callable[[int], str] | None:
        """What rows are sorted by, so that those with the same adapter come together and its weights are read once."""
        return (lambda row: self._adapters[row].digest if row in self._adapters else "") if self._adapters else None

    def step(self, inputs: StepInputs) -> LoraStep | None:
        """The adapters of a step; None if no sequence has one."""
        if not self._adapters:
            return None
        of_sequences = [self._adapters.get(row) for row in inputs.rows.tolist()]
        adapters = list(dict.fromkeys(adapter for adapter in of_sequences if adapter is not None))
        if not adapters:
            return None
        numbers = {adapter: number for number, adapter in enumerate(adapters)}
        slots = np.array([-1 if adapter is None else numbers[adapter] for adapter in of_sequences], np.int32)
        slots = np.repeat(slots, np.diff(inputs.metadata.query_start_loc))
        return LoraStep(adapters, slots, self._device, batch_invariant=self._batch_invariant)
