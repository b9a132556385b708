"""A Triton kernel that writes keys and values into the paged KV cache."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def write_kernel(
    key,
    value,
    k_cache,
    v_cache,
    slots,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the keys and values of a token into its slot. Grid: [tokens, blocks of a token's larger row]."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_key, is_value = index < NUM_KV_HEADS * HEAD_DIM, index < NUM_KV_HEADS * V_HEAD_DIM
    where = key + token * key_stride + (index // HEAD_DIM).to(tl.int64) * key_head_stride + index % HEAD_DIM
    keys = tl.load(where, mask=is_key)
    tl.store(k_cache + slot * NUM_KV_HEADS * HEAD_DIM + index, keys.to(k_cache.dtype.element_ty), mask=is_key)
    where = value + token * value_stride + (index // V_HEAD_DIM).to(tl.int64) * value_head_stride + index % V_HEAD_DIM
    values = tl.load(where, mask=is_value)
    tl.store(v_cache + slot * NUM_KV_HEADS * V_HEAD_DIM + index, values.to(v_cache.dtype.element_ty), mask=is_value)
