"""Attention whose steps can be recorded, in plain torch, for machines without a GPU."""

from __future__ import annotations

import numpy as np
import torch
from triptych_engine.runner.attention.paged import AttentionMetadata, LayerShape
from triptych_engine.runner.attention.plain import TorchAttention
from triptych_engine.runner.cuda.step import StepTensors


class RecordableTorchAttention(TorchAttention):
    """Reads the step's tensors in each layer, as a GPU's kernels do when a recorded step is replayed. See RecordableAttention."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self._step: StepTensors | None = None
        self.scratch_slot = 0
        self._kept: list[object] = []  # what it reads lives on, as a GPU's cache and buffers do

    def allocate(self, layers: dict[int, LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        self.scratch_slot = num_blocks * block_size
        super().allocate(layers, num_blocks + 1, block_size, dtype)

    def begin(self, metadata: AttentionMetadata) -> None:
        self._step = None
        super().begin(metadata)

    def begin_on(self, step: StepTensors) -> None:
        assert step.decode is not None
        assert torch.equal(step.decode.sequences, step.decode.tokens), "each sequence computes one token"
        self._step = step

    def forward(self, layer: int, query: torch.Tensor, *states: torch.Tensor, **options: object) -> torch.Tensor:  # type: ignore[override]
        if self._step is not None:
            super().begin(_on_the_host(self._step))
            self._kept.append((self._slots, self._sequences))
        return super().forward(layer, query, *states, **options)  # type: ignore[arg-type]


def _on_the_host(step: StepTensors) -> AttentionMetadata:
    num_seqs, width = len(step.seq_lens), int(step.blocks_per_row)
    seq_lens = step.seq_lens.numpy().copy()
    return AttentionMetadata(
        query_start_loc=np.arange(num_seqs + 1, dtype=np.int32),
        seq_lens=seq_lens,
        block_table=step.block_table.flatten()[: num_seqs * width].view(num_seqs, width).numpy().copy(),
        slots=step.slots.numpy().copy(),
        positions=seq_lens - np.int32(1),
    )
