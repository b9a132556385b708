"""Runs the same ragged steps on several attention backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from triptych_engine.runner.attention.paged import AttentionBackend, AttentionMetadata, LayerShape
from triptych_engine.runner.attention.plain import TorchAttention
from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.kernels import CpuKernels

#: Tolerances for the comparison of outputs, by compute dtype.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
#: Steps. Each has the number of new tokens of four sequences.
RAGGED = [[20, 130, 0, 39], [16, 70, 5, 1], [1, 0, 1, 1], [1, 1, 1, 1]]


class RoundedTorchAttention(TorchAttention):
    """Plain torch with keys and values as a cache in int8 holds them: multiples of a head's largest number by 127.

    Args:
        rounds_queries: queries are rounded in the same way.
    """

    def __init__(self, *, rounds_queries: bool) -> None:
        super().__init__(torch.device("cpu"))
        self._rounds_queries = rounds_queries

    def allocate(self, layers: dict[int, LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        assert dtype == torch.int8
        super().allocate(layers, num_blocks, block_size, torch.float32)

    def forward(  # type: ignore[override]
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        query = _rounded(query) if self._rounds_queries else query.float()
        out = super().forward(layer, query, _rounded(key), _rounded(value), **options)
        return out.to(value.dtype)


def _rounded(states: torch.Tensor) -> torch.Tensor:
    states = states.float()
    scale = states.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return (states / scale).round() * scale


def metadata(
    lengths: list[int],
    computed: list[int],
    block_table: np.ndarray,
    block_size: int,
    span: int = 0,
    *,
    ends_in_windows: bool = False,
) -> AttentionMetadata:
    """Metadata of a step. With a span, the tokens of each sequence see each other in groups of `span`."""
    positions = np.concatenate([np.arange(c, c + n) for n, c in zip(lengths, computed, strict=True)])
    rows = np.repeat(np.arange(len(lengths)), lengths)
    ends = np.array(computed) + lengths
    return AttentionMetadata(
        query_start_loc=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        seq_lens=ends.astype(np.int32),
        block_table=block_table,
        slots=block_table[rows, positions // block_size].astype(np.int64) * block_size + positions % block_size,
        positions=positions.astype(np.int32),
        key_end=None if not span else np.minimum((positions // span + 1) * span, ends[rows]).astype(np.int32),
        ends_in_windows=ends_in_windows,
    )


def worst_difference(
    backends: Sequence[AttentionBackend],
    *,
    shape: LayerShape,
    num_q_heads: int,
    dtype: torch.dtype,
    steps: list[list[int]],
    block_size: int = 16,
    query_dtype: torch.dtype | None = None,
    cache_dtype: torch.dtype | None = None,
    span: int = 0,
    ends_in_windows: bool = False,
    device: str = "cpu",
    **options: Any,
) -> float:
    """The largest difference between the first backend's outputs and the others'.

    Args:
        dtype: dtype of values, and also of queries, keys and the cache unless these have their own.
        steps: for each step, the number of new tokens of each sequence.
        span, ends_in_windows: see `metadata`.
        options: options of `AttentionBackend.forward`.
    """
    generator = torch.Generator().manual_seed(0)
    num_seqs = len(steps[0])
    blocks_per_seq = -(-max(sum(step[i] for step in steps) for i in range(num_seqs)) // block_size)
    table = torch.randperm(num_seqs * blocks_per_seq, generator=generator).reshape(num_seqs, -1).to(torch.int32).numpy()
    for backend in backends:
        backend.allocate({0: shape}, table.size, block_size, cache_dtype or dtype)
    computed, worst = [0] * num_seqs, 0.0
    arguments = {"scaling": shape.head_dim**-0.5, "window": 0, "softcap": 0.0, "sinks": None} | options

    def random(num_heads: int, num_tokens: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
        # The layout that models pass: [heads, tokens, dim], transposed to [tokens, heads, dim].
        return torch.randn(num_heads, num_tokens, dim, generator=generator).to(device, dtype).transpose(0, 1)

    for step in steps:
        active = [i for i in range(num_seqs) if step[i]]
        lengths = [step[i] for i in active]
        num_tokens = sum(lengths)
        query = random(num_q_heads, num_tokens, shape.head_dim, query_dtype or dtype)
        key = random(shape.num_kv_heads, num_tokens, shape.head_dim, query_dtype or dtype)
        value = random(shape.num_kv_heads, num_tokens, shape.v_head_dim, dtype)
        if shape.values_in_keys:
            value = key[..., : shape.v_head_dim].to(dtype)
        outputs = []
        for backend in backends:
            place = [computed[i] for i in active], np.ascontiguousarray(table[active]), block_size
            backend.begin(metadata(lengths, *place, span, ends_in_windows=ends_in_windows))
            outputs.append(backend.forward(0, query, key, value, **arguments))
        assert outputs[0].shape == (num_tokens, num_q_heads, shape.v_head_dim)
        assert outputs[0].dtype == dtype
        assert outputs[0].is_contiguous()
        worst = max(worst, *((outputs[0].float() - other.float()).abs().max().item() for other in outputs[1:]))
        for i in active:
            computed[i] += step[i]
    return worst


def run_both(kernels: CpuKernels, **case: Any) -> float:
    """Run the same ragged steps on the CPU kernel and on plain torch. Returns the largest difference."""
    return worst_difference([CpuAttention(kernels), TorchAttention(torch.device("cpu"))], **case)
