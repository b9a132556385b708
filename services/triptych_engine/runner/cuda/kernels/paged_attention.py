"""Triton kernels for attention over the paged KV cache: one for sequences that decode, one for prompts.

Caches are [num_slots, num_kv_heads, head_dim], dense; key `i` of a sequence is in slot
`block_table[i // block_size] * block_size + i % block_size`. Softmax is computed online, in float32 and to the base of 2 (Milakov
and Gimelshein, 2018; Dao, FlashAttention-2, 2023). The query heads of a key head are rows of one tile: its keys are read once.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _scores(query, keys, scaling, softcap, HAS_SOFTCAP: tl.constexpr):
    """Scores to the base of 2, [rows, keys]."""
    scores = tl.dot(query, keys, input_precision="tf32x3") * scaling
    if HAS_SOFTCAP:
        small = tl.exp(-2.0 * tl.abs(scores) / softcap)  # tanh, without overflow
        scores = tl.where(scores < 0, -softcap, softcap) * (1.0 - small) / (1.0 + small)
    return scores * _LOG2_E


@triton.jit
def _slots(block_table, keys, is_key, BLOCK_SIZE: tl.constexpr):
    """[keys] int64, where the cache has them."""
    blocks = tl.load(block_table + keys // BLOCK_SIZE, mask=is_key, other=0)
    return blocks.to(tl.int64) * BLOCK_SIZE + keys % BLOCK_SIZE


@triton.jit
def _attend(
    total,
    highest,
    out,
    query,
    start,
    stop,
    key_end,
    first_key,
    block_table,
    k_cache,
    v_cache,
    k_stride,
    v_stride,
    scaling,
    softcap,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PADDED_V_DIM: tl.constexpr,
    TILE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Attend to the keys from `start` to `stop`, of which a row sees those from `first_key` to `key_end` ([rows] each). Without
    IS_MASKED all rows see all, and the number is a multiple of TILE. Returns total, highest and out of the online softmax."""
    dims, v_dims = tl.arange(0, PADDED_DIM), tl.arange(0, PADDED_V_DIM)
    for first in range(start, stop, TILE):
        keys = first + tl.arange(0, TILE)
        is_key = keys < stop
        slots = _slots(block_table, keys, is_key, BLOCK_SIZE)
        k_mask = (dims < HEAD_DIM)[:, None] & is_key[None, :]
        v_mask = is_key[:, None] & (v_dims < V_HEAD_DIM)[None, :]
        k = tl.load(k_cache + slots[None, :] * k_stride + dims[:, None], mask=k_mask, other=0.0)
        scores = _scores(query, k, scaling, softcap, HAS_SOFTCAP)
        if IS_MASKED:
            sees = (keys[None, :] < key_end[:, None]) & (keys[None, :] >= first_key[:, None])
            scores = tl.where(sees, scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        # A row that has seen no key yet would compute infinity minus infinity.
        base = tl.where(new_highest == float("-inf"), 0.0, new_highest) if IS_MASKED else new_highest
        weights = tl.exp2(scores - base[:, None])
        scale = tl.exp2(highest - base)
        v = tl.load(v_cache + slots[:, None] * v_stride + v_dims[None, :], mask=v_mask, other=0.0)
        out = tl.dot(weights.to(v.dtype), v, acc=out * scale[:, None], input_precision="tf32x3")
        total = total * scale + tl.sum(weights, 1)
        highest = new_highest
    return total, highest, out


@triton.jit
def _start(sinks, heads, is_row, ROWS: tl.constexpr, HAS_SINKS: tl.constexpr):
    """Sum and maximum of the online softmax before the first key, [rows] float32 each."""
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if HAS_SINKS:
        highest = tl.load(sinks + heads, mask=is_row, other=0.0).to(tl.float32) * _LOG2_E
        total += 1.0
    return total, highest


@triton.jit(do_not_specialize=["num_splits"])
def decode_kernel(
    query,
    k_cache,
    v_cache,
    out,
    partial_out,
    partial_sums,
    block_table,
    blocks_per_row,
    seq_lens,
    sequences,
    tokens,
    sinks,
    scaling,
    softcap,
    window,
    query_stride,
    head_stride,
    k_stride,
    v_stride,
    num_splits,
    BLOCK_SIZE: tl.constexpr,
    NUM_Q_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PADDED_V_DIM: tl.constexpr,
    TILE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):
    """One token of a sequence, the heads of one key head, a part of its keys. Grid: [sequences, num_kv_heads, num_splits].

    With IS_SPLIT the parts are joined by `join_kernel` (Flash-Decoding, Dao et al., 2023).
    """
    index, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence, token = tl.load(sequences + index), tl.load(tokens + index)
    num_keys = tl.load(seq_lens + sequence)
    first_key = tl.maximum(num_keys - window, 0) if HAS_WINDOW else 0
    start, stop = first_key, num_keys
    if IS_SPLIT:
        length = tl.cdiv(tl.cdiv(num_keys - first_key, num_splits), TILE) * TILE
        start = first_key + split * length
        stop = tl.minimum(start + length, num_keys)
        if start >= num_keys:
            return
    rows = tl.arange(0, ROWS)
    heads, is_row = kv_head * GROUP + rows, rows < GROUP
    dims, v_dims = tl.arange(0, PADDED_DIM), tl.arange(0, PADDED_V_DIM)
    mask = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    where = query + token.to(tl.int64) * query_stride + heads[:, None].to(tl.int64) * head_stride + dims[None, :]
    q = tl.load(where, mask=mask, other=0.0).to(k_cache.dtype.element_ty)
    total, highest = _start(sinks, heads, is_row, ROWS, HAS_SINKS)
    if IS_SPLIT and HAS_SINKS:  # the sink belongs to one of the parts
        total = tl.where(split == 0, total, 0.0)
        highest = tl.where(split == 0, highest, float("-inf"))
    whole = start + (stop - start) // TILE * TILE
    table = block_table + sequence.to(tl.int64) * tl.load(blocks_per_row)
    k_cache += kv_head * HEAD_DIM
    v_cache += kv_head * V_HEAD_DIM
    result = tl.zeros([ROWS, PADDED_V_DIM], tl.float32)
    key_end = tl.zeros([ROWS], tl.int32) + stop
    no_key = tl.zeros([ROWS], tl.int32)
    total, highest, result = _attend(
        total, highest, result, q, start, whole, key_end, no_key, table, k_cache, v_cache, k_stride, v_stride, scaling, softcap,
        BLOCK_SIZE, HEAD_DIM, V_HEAD_DIM, PADDED_DIM, PADDED_V_DIM, TILE, HAS_SOFTCAP, False,
    )  # fmt: skip
    total, highest, result = _attend(
        total, highest, result, q, whole, stop, key_end, no_key, table, k_cache, v_cache, k_stride, v_stride, scaling, softcap,
        BLOCK_SIZE, HEAD_DIM, V_HEAD_DIM, PADDED_DIM, PADDED_V_DIM, TILE, HAS_SOFTCAP, True,
    )  # fmt: skip
    result = result / total[:, None]
    v_mask = is_row[:, None] & (v_dims < V_HEAD_DIM)[None, :]
    if IS_SPLIT:
        parts = (index * NUM_Q_HEADS + heads) * num_splits + split
        tl.store(partial_out + parts[:, None] * V_HEAD_DIM + v_dims[None, :], result, mask=v_mask)
        tl.store(partial_sums + parts, highest + tl.log2(total), mask=is_row)
    else:
        where = out + (token.to(tl.int64) * NUM_Q_HEADS + heads[:, None]) * V_HEAD_DIM + v_dims[None, :]
        tl.store(where, result.to(out.dtype.element_ty), mask=v_mask)


@triton.jit(do_not_specialize=["num_splits"])
def join_kernel(
    out,
    partial_out,
    partial_sums,
    seq_lens,
    sequences,
    tokens,
    window,
    num_splits,
    NUM_Q_HEADS: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    PADDED_V_DIM: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Join the parts of `decode_kernel`: the mean of their results, by the sums of their weights.

    Grid: [sequences, num_q_heads].
    """
    index, head = tl.program_id(0), tl.program_id(1)
    token = tl.load(tokens + index)
    num_keys = tl.load(seq_lens + tl.load(sequences + index))
    if HAS_WINDOW:
        num_keys = tl.minimum(num_keys, window)
    length = tl.cdiv(tl.cdiv(num_keys, num_splits), TILE) * TILE
    splits, dims = tl.arange(0, PADDED_SPLITS), tl.arange(0, PADDED_V_DIM)
    is_part = splits * length < num_keys
    parts = (index * NUM_Q_HEADS + head) * num_splits + splits
    sums = tl.load(partial_sums + parts, mask=is_part, other=float("-inf"))
    weights = tl.exp2(sums - tl.max(sums, 0))
    mask = is_part[:, None] & (dims < V_HEAD_DIM)[None, :]
    results = tl.load(partial_out + parts[:, None] * V_HEAD_DIM + dims[None, :], mask=mask, other=0.0)
    result = tl.sum(results * weights[:, None], 0) / tl.sum(weights, 0)
    where = out + (token.to(tl.int64) * NUM_Q_HEADS + head) * V_HEAD_DIM + dims
    tl.store(where, result.to(out.dtype.element_ty), mask=dims < V_HEAD_DIM)


@triton.jit
def prompt_kernel(
    query,
    k_cache,
    v_cache,
    out,
    block_table,
    blocks_per_row,
    query_start_loc,
    positions,
    key_ends,
    tile_sequences,
    tile_tokens,
    sinks,
    scaling,
    softcap,
    window,
    query_stride,
    head_stride,
    k_stride,
    v_stride,
    BLOCK_SIZE: tl.constexpr,
    NUM_Q_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PADDED_V_DIM: tl.constexpr,
    TILE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Several tokens of a sequence, from `tile_tokens` on in the flat batch; the heads of one key head.

    Grid: [tiles, num_kv_heads]. Row r of the tile is head `r % GROUP` of token `r // GROUP`.
    """
    index, kv_head = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(tile_sequences + index)
    rows = tl.arange(0, ROWS)
    tokens = tl.load(tile_tokens + index) + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    is_row = (tokens < tl.load(query_start_loc + sequence + 1)) & (rows < ROWS // GROUP * GROUP)
    dims, v_dims = tl.arange(0, PADDED_DIM), tl.arange(0, PADDED_V_DIM)
    where = query + tokens.to(tl.int64)[:, None] * query_stride + heads[:, None].to(tl.int64) * head_stride + dims[None, :]
    q = tl.load(where, mask=is_row[:, None] & (dims < HEAD_DIM)[None, :], other=0.0).to(k_cache.dtype.element_ty)
    key_end = tl.load(key_ends + tokens, mask=is_row, other=0)
    stop = tl.max(key_end, 0)
    key_end = tl.where(is_row, key_end, stop)  # rows that are none see all, so that they stay finite
    first_key = tl.zeros([ROWS], tl.int32)
    start, whole = 0, tl.min(key_end, 0) // TILE * TILE
    if HAS_WINDOW:
        first_key = tl.maximum(tl.load(positions + tokens, mask=is_row, other=0) - window + 1, 0)
        start = tl.min(tl.where(is_row, first_key, stop), 0) // TILE * TILE
        whole = start
    total, highest = _start(sinks, heads, is_row, ROWS, HAS_SINKS)
    table = block_table + sequence.to(tl.int64) * tl.load(blocks_per_row)
    k_cache += kv_head * HEAD_DIM
    v_cache += kv_head * V_HEAD_DIM
    result = tl.zeros([ROWS, PADDED_V_DIM], tl.float32)
    if not HAS_WINDOW:
        total, highest, result = _attend(
            total, highest, result, q, start, whole, key_end, first_key, table, k_cache, v_cache, k_stride, v_stride, scaling,
            softcap, BLOCK_SIZE, HEAD_DIM, V_HEAD_DIM, PADDED_DIM, PADDED_V_DIM, TILE, HAS_SOFTCAP, False,
        )  # fmt: skip
    total, highest, result = _attend(
        total, highest, result, q, whole, stop, key_end, first_key, table, k_cache, v_cache, k_stride, v_stride, scaling, softcap,
        BLOCK_SIZE, HEAD_DIM, V_HEAD_DIM, PADDED_DIM, PADDED_V_DIM, TILE, HAS_SOFTCAP, True,
    )  # fmt: skip
    where = out + (tokens.to(tl.int64)[:, None] * NUM_Q_HEADS + heads[:, None]) * V_HEAD_DIM + v_dims[None, :]
    result = (result / total[:, None]).to(out.dtype.element_ty)
    tl.store(where, result, mask=is_row[:, None] & (v_dims < V_HEAD_DIM)[None, :])
