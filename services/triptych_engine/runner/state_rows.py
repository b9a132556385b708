"""The states of the sequences that a runner computes, and those of their encoders."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from triptych_engine.media.item import Embeddings
from triptych_engine.runner.cross_attention.layers import CrossLayers
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


class CrossRows:
    """Which slot each row's sequence has for its encoder's states.

    Args:
        layers: of the model; None if it has no cross-attention. Then nothing here has an effect.
        num_slots: as the scheduler knows it.
        max_num_seqs: rows.
        block_size, dtype: of the pages that a slot has.
    """

    def __init__(self, layers: CrossLayers | None, num_slots: int, max_num_seqs: int, block_size: int, dtype: torch.dtype) -> None:
        self._layers, self._sizes = layers, (num_slots, block_size, dtype)
        self._slots = np.zeros(max_num_seqs, np.int64)

    def allocate(self) -> None:
        """Allocate the memory of the slots."""
        if self._layers is not None:
            self._layers.allocate(*self._sizes)

    def free(self) -> None:
        """Free it."""
        if self._layers is not None:
            self._layers.free()

    def add(self, row: int, sequence: NewSequence) -> None:
        """A sequence gets a row; its slot is filled, unless it has the states already. The sequences of checks and of the warm-up,
        before any other, share one."""
        if self._layers is None:
            return
        if self._layers.num_slots == 0:  # a check before there is a cache
            self.allocate()
        if sequence.cross_slot is None:
            self._slots[row] = self._layers.fill_probe()
            return
        self._slots[row] = sequence.cross_slot
        if sequence.encoder_states is not None:
            self._layers.fill(sequence.cross_slot, _tensor(sequence.encoder_states).to(self._layers.probe))

    def computing(self, inputs: StepInputs) -> AbstractContextManager[None]:
        """Within this context, forward passes compute this step."""
        if self._layers is None:
            return nullcontext()
        return self._layers.computing(inputs.metadata.query_start_loc, self._slots[inputs.rows].tolist())


def _tensor(states: Embeddings) -> torch.Tensor:
    tensor = states.tensors["embeds"]
    return torch.frombuffer(tensor.data, dtype=getattr(torch, tensor.dtype)).view(tensor.shape)
