"""torch's varlen_attn: whether this build and this device have it with a block table, and what it supports."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from triptych_engine.runner.attention.paged import LayerShape

#: Parameters that `varlen_attn` has since the release in which it can read a paged cache.
_NEEDED = {"block_table", "seqused_k", "enable_gqa", "window_size", "scale"}


class VarlenFunction(Protocol):
    """torch.nn.attention.varlen.varlen_attn, as far as it is used here."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seq_q: torch.Tensor,
        cu_seq_k: torch.Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float,
        window_size: tuple[int, int],
        enable_gqa: bool,
        seqused_k: torch.Tensor,
        block_table: torch.Tensor,
    ) -> torch.Tensor:
        """Attend over pages.

        Args:
            query: [num_tokens, num_q_heads, head_dim].
            key, value: [num_pages, page_size, num_kv_heads, head_dim].
            cu_seq_q, cu_seq_k: [num_seqs + 1] int32, start of each sequence among all queries and among all keys.
            max_q, max_k: largest number of queries and of keys of a sequence.
            window_size: number of keys to the left and to the right that a token attends to besides its own; -1 for all. The last
                query of a sequence is aligned with its last key.
            seqused_k: [num_seqs] int32 keys of each sequence.
            block_table: [num_seqs, max_pages] int32.
        """
        ...


@dataclass(frozen=True, slots=True)
class VarlenKernel:
    """A function that attends over pages, and its limits. The defaults are those of the FlashAttention 2 inside torch
    (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp: mha_varlen_fwd)."""

    attend: VarlenFunction
    page_multiple: int = 256
    head_dim_multiple: int = 8
    max_head_dim: int = 256
    dtypes: frozenset[torch.dtype] = frozenset({torch.float16, torch.bfloat16})

    def refusal(self, block_size: int, dtype: torch.dtype) -> str | None:
        """The reason why it does not support such a cache; None if it does."""
        if dtype not in self.dtypes:
            return f"varlen_attn computes in {_names(self.dtypes)}, not in {_names({dtype})}"
        if block_size % self.page_multiple:
            return f"varlen_attn needs a block size that is a multiple of {self.page_multiple}, not {block_size} (--block-size)"
        return None

    def layer_refusal(self, shape: LayerShape) -> str | None:
        """The reason why it does not support such a layer; None if it does."""
        if shape.v_head_dim != shape.head_dim:
            return f"values of {shape.v_head_dim} dimensions beside keys of {shape.head_dim}"
        if shape.head_dim % self.head_dim_multiple or shape.head_dim > self.max_head_dim:
            return f"heads of {shape.head_dim} dimensions"
        return None


def find_varlen_kernel(device: torch.device) -> VarlenKernel:
    """torch's own kernel. Raises ValueError if this build, or this device, has none that can read a paged cache."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise ValueError(f"torch {torch.__version__} has no varlen_attn") from error
    missing = _NEEDED - inspect.signature(varlen_attn).parameters.keys()
    if missing:
        raise ValueError(f"varlen_attn of torch {torch.__version__} has no {', '.join(sorted(missing))}")
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        raise ValueError(f"varlen_attn needs compute capability 8.0, {torch.cuda.get_device_name(device)} has less")
    return VarlenKernel(cast(VarlenFunction, varlen_attn))  # it returns a pair only on request


def _names(dtypes: frozenset[torch.dtype] | set[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
