"""torch's varlen_attn over pages, in plain torch, after its documentation: a replacement for machines without a GPU."""

from __future__ import annotations

import torch
from triptych_engine.runner.cuda.varlen import VarlenKernel


def varlen_attn(
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
    """See triptych_engine.runner.cuda.varlen.VarlenFunction."""
    num_seqs = len(seqused_k)
    assert len(cu_seq_q) == len(cu_seq_k) == num_seqs + 1 == len(block_table) + 1
    assert {t.dtype for t in (cu_seq_q, cu_seq_k, seqused_k, block_table)} == {torch.int32}
    assert key.dtype == value.dtype == query.dtype
    assert query.is_contiguous()
    assert cu_seq_q[-1] == len(query)
    assert cu_seq_q.diff().max() <= max_q
    assert seqused_k.max() <= max_k
    assert torch.equal(cu_seq_k.diff(), seqused_k)
    assert enable_gqa == (query.shape[1] != key.shape[2])
    output = torch.empty_like(query)
    for i in range(num_seqs):
        num_keys, rows = int(seqused_k[i]), slice(int(cu_seq_q[i]), int(cu_seq_q[i + 1]))
        q = query[rows].transpose(0, 1).float()
        pages = block_table[i, : -(-num_keys // key.shape[1])].long()
        k, v = (cache[pages].flatten(0, 1)[:num_keys].transpose(0, 1).float() for cache in (key, value))
        # The last query is at the position of the last key.
        distance = torch.arange(num_keys)[None] - torch.arange(num_keys - q.shape[1], num_keys)[:, None]
        left, right = window_size
        mask = torch.ones_like(distance, dtype=torch.bool)
        mask &= (distance >= -left) if left >= 0 else True
        mask &= (distance <= right) if right >= 0 else True
        attended = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
        )  # fmt: skip
        output[rows] = attended.transpose(0, 1).to(output.dtype)
    return output


def a_varlen_kernel(page_multiple: int = 1, max_head_dim: int = 256) -> VarlenKernel:
    """The replacement as a kernel. It accepts everything that is small enough for tests."""
    dtypes = frozenset({torch.float32, torch.float16, torch.bfloat16})
    return VarlenKernel(varlen_attn, page_multiple=page_multiple, max_head_dim=max_head_dim, dtypes=dtypes)
