"""Paged attention on GPUs through torch's varlen_attn."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch

from triptych_engine.runner.attention.paged import AttentionMetadata, LayerShape, TorchAttention
from triptych_engine.runner.cuda.varlen import VarlenKernel
from triptych_engine.runner.transfer import HostToDevice

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepTensors:
    """A step's metadata for varlen_attn, on the device."""

    slots: torch.Tensor  # [num_tokens] int64
    block_table: torch.Tensor  # [num_seqs, max_blocks] int32
    query_start_loc: torch.Tensor  # [num_seqs + 1] int32
    key_start_loc: torch.Tensor  # [num_seqs + 1] int32
    seq_lens: torch.Tensor  # [num_seqs] int32
    max_query_len: int
    max_seq_len: int


class CudaAttention:
    """Keys and values [num_blocks + 1, block_size, num_kv_heads, head_dim]; the last block is scratch.

    TorchAttention computes the layers and steps that the kernel does not support, on the same cache: this is correct, but slow.
    Each reason why layers are not supported is logged once.

    Args:
        kernel: torch's kernel, or in tests a fake with the same signature.
    """

    name = "cuda"

    def __init__(self, device: torch.device, kernel: VarlenKernel) -> None:
        self._device, self._kernel = device, kernel
        self._transfer = HostToDevice(device)
        self._fallback = TorchAttention(device)
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._refused: dict[int, str] = {}  # layer -> why the kernel does not compute it
        self._scratch_slot = 0

    def allocate(self, layers: dict[int, LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        reason = self._kernel.refusal(block_size, dtype)
        if reason is not None:
            raise ValueError(reason)
        refused = {index: reason for index, shape in layers.items() if (reason := self._kernel.layer_refusal(shape))}
        if layers and len(refused) == len(layers):
            raise ValueError(f"varlen_attn takes none of the layers: {next(iter(refused.values()))}")
        for index, reason in refused.items():
            self._refuse(index, reason)
        self._dtype = dtype
        self._scratch_slot = num_blocks * block_size
        self._cache = {
            index: (
                torch.empty(num_blocks + 1, block_size, shape.num_kv_heads, shape.head_dim, dtype=dtype, device=self._device),
                torch.empty(num_blocks + 1, block_size, shape.num_kv_heads, shape.v_head_dim, dtype=dtype, device=self._device),
            )
            for index, shape in layers.items()
        }
        self._fallback.attach({index: (k.flatten(0, 1), v.flatten(0, 1)) for index, (k, v) in self._cache.items()}, block_size)

    def prefault(self) -> None:
        pass

    def free(self) -> None:
        self._cache = {}
        self._fallback.free()

    @property
    def scratch_slot(self) -> int:
        """First slot of the scratch block, which belongs to no sequence. Padding rows write there."""
        return self._scratch_slot

    @property
    def fits_graphs(self) -> bool:
        """Whether the kernel computes all layers seen so far, so that a step can be captured."""
        return not self._refused

    def begin(self, metadata: AttentionMetadata) -> None:
        self._metadata: AttentionMetadata | None = metadata
        self._fallback_begun = False
        key_starts = np.zeros(metadata.num_seqs + 1, np.int32)
        np.cumsum(metadata.seq_lens, out=key_starts[1:])
        slots, block_table, query_start_loc, key_start_loc, seq_lens = self._transfer(
            metadata.slots, metadata.block_table, metadata.query_start_loc, key_starts, metadata.seq_lens
        )
        longest = int(np.diff(metadata.query_start_loc).max()), int(metadata.seq_lens.max())
        self._step = StepTensors(slots, block_table, query_start_loc, key_start_loc, seq_lens, *longest)

    def begin_on(self, step: StepTensors) -> None:
        """Prepare a step whose metadata is already on the device. Requires `fits_graphs`."""
        self._metadata, self._step = None, step

    def forward(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,
        window: int,
        softcap: float,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        if softcap or sinks is not None:
            self._refuse(layer, "a softcap of its scores" if softcap else "attention sinks")
        if layer in self._refused or (self._metadata is not None and self._metadata.key_end is not None):
            return self._fall_back(layer, query, key, value, scaling, window, softcap, sinks)
        step = self._step
        k_cache, v_cache = self._cache[layer]
        k_cache.flatten(0, 1).index_copy_(0, step.slots, key.to(self._dtype))
        v_cache.flatten(0, 1).index_copy_(0, step.slots, value.to(self._dtype))
        return self._kernel.attend(
            query.to(self._dtype).contiguous(),
            k_cache,
            v_cache,
            step.query_start_loc,
            step.key_start_loc,
            step.max_query_len,
            step.max_seq_len,
            scale=scaling,
            window_size=_window_size(window, step.max_query_len),
            enable_gqa=query.shape[1] != key.shape[1],
            seqused_k=step.seq_lens,
            block_table=step.block_table,
        )

    def _refuse(self, layer: int, reason: str) -> None:
        if layer in self._refused:
            return
        if reason not in self._refused.values():
            log.warning("layer %d, and others like it, are computed by plain torch, slowly: varlen_attn does not take %s",
                        layer, reason)  # fmt: skip
        self._refused[layer] = reason

    def _fall_back(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        window: int,
        softcap: float,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        if self._metadata is None:
            raise RuntimeError(f"layer {layer} needs the step's metadata on the host: {self._refused[layer]}")
        if not self._fallback_begun:
            self._fallback.begin(self._metadata)
            self._fallback_begun = True
        return self._fallback.forward(
            layer, query, key, value, scaling=scaling, window=window, softcap=softcap, sinks=sinks
        )  # fmt: skip


def _window_size(window: int, max_query_len: int) -> tuple[int, int]:
    """varlen_attn's window. A single query attends to all keys, so it needs no bound; without one, its heads share key reads."""
    if window:
        return window - 1, 0
    return (-1, -1) if max_query_len == 1 else (-1, 0)
