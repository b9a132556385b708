"""The states of the sequences that a runner computes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from triptych_engine.runner.input_batch import StepInputs
from triptych_engine.runner.recurrent.layers import RecurrentLayers
from triptych_engine.runner.recurrent.step import RecurrentStep
from triptych_engine.scheduling.output import NewSequence


class StateRows:
    """Which slot the state of each row's sequence has.

    Args:
        layers: of the model; None if it has no recurrent layers. Then nothing here has an effect.
        num_slots: as the scheduler knows it.
        max_num_seqs: rows.
    """

    def __init__(self, layers: RecurrentLayers | None, num_slots: int, max_num_seqs: int, device: torch.device) -> None:
        self._layers, self._num_slots, self._device = layers, num_slots, device
        self._slots = np.zeros(max_num_seqs, np.int32)

    def allocate(self) -> None:
        """Allocate the memory of the states."""
        if self._layers is not None:
            self._layers.allocate(self._num_slots, self._device)

    def free(self) -> None:
        """Free it."""
        if self._layers is not None:
            self._layers.free()

    def add(self, row: int, sequence: NewSequence) -> None:
        """A sequence gets a row. Those of checks and of the warm-up, before any other, have no slot of their own."""
        if self._layers is None:
            return
        slot = row % self._num_slots if sequence.state_slot is None else sequence.state_slot
        self._slots[row] = slot
        if sequence.state_source is not None:
            self._layers.copy(sequence.state_source, slot)

    def computing(self, inputs: StepInputs) -> AbstractContextManager[None]:
        """Within this context, forward passes compute this step."""
        if self._layers is None:
            return nullcontext()
        if self._layers.num_slots == 0:  # a check before there is a cache
            self._layers.allocate(self._num_slots, self._device)
        starts = inputs.metadata.query_start_loc
        computed = inputs.metadata.seq_lens - np.diff(starts)
        snapshots = {inputs.request_ids.index(request_id): pairs for request_id, pairs in inputs.snapshots.items()}
        return self._layers.computing(RecurrentStep.of(starts, computed, self._slots[inputs.rows].tolist(), snapshots))
