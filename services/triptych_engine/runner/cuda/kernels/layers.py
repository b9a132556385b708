"""Triton kernels for what lies between the matrix products of a decoder layer. They compute in float32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _normed(values, weight, eps, index, mask, SIZE: tl.constexpr):
    """values / rms(values) * weight of a row, which is 0 beyond its end."""
    scale = tl.rsqrt(tl.sum(values * values, 0) / SIZE + eps)
    return values * scale * tl.load(weight + index, mask=mask, other=0.0)


@triton.jit
def rms_norm_kernel(
    x,
    added,
    shares,
    added_weight,
    weight,
    total,
    out,
    added_eps,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    NUM_ADDED: tl.constexpr,
    HAS_SHARES: tl.constexpr,
    IS_ADDED_NORMED: tl.constexpr,
    HAS_OUT: tl.constexpr,
):
    """x / rms(x) * weight; with NUM_ADDED of the sum of x and as many rows of `added`, which is stored too. Grid: [rows].

    With HAS_SHARES each added row is multiplied by its share; with IS_ADDED_NORMED their sum is normalised. Without HAS_OUT, only
    the sum is stored.
    """
    number = tl.program_id(0).to(tl.int64)
    row = number * SIZE
    index = tl.arange(0, BLOCK)
    mask = index < SIZE
    values = tl.load(x + row + index, mask=mask, other=0.0).to(tl.float32)
    if NUM_ADDED > 0:
        more = tl.zeros([BLOCK], tl.float32)
        for which in tl.static_range(NUM_ADDED):
            one = tl.load(added + row * NUM_ADDED + which * SIZE + index, mask=mask, other=0.0).to(tl.float32)
            more += one * tl.load(shares + number * NUM_ADDED + which) if HAS_SHARES else one
        values += _normed(more, added_weight, added_eps, index, mask, SIZE) if IS_ADDED_NORMED else more
        tl.store(total + row + index, values, mask=mask)
    if HAS_OUT:
        result = _normed(values, weight, eps, index, mask, SIZE)
        tl.store(out + row + index, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def activated(gate, IS_GELU: tl.constexpr):
    """silu(gate); with IS_GELU gelu(gate), approximated by tanh. Both are gate * sigmoid(z), of another z."""
    z = gate
    if IS_GELU:
        z = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2 * sqrt(2 / pi); tanh(z / 2) = 2 * sigmoid(z) - 1
    small = tl.exp(-tl.abs(z))  # without overflow
    return gate * tl.where(z >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def act_mul_kernel(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, IS_GELU: tl.constexpr):
    """activated(first half of a row) * second half. Grid: [rows, blocks of a half]."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = index < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + index, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + index, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + index, (activated(gate, IS_GELU) * up).to(out.dtype.element_ty), mask=mask)


@triton.jit
def rope_kernel(
    qkv,
    cos,
    sin,
    q_weight,
    k_weight,
    eps,
    out,
    k_cache,
    v_cache,
    slots,
    qkv_stride,
    out_stride,
    NUM_Q_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    HAS_CACHE: tl.constexpr,
):
    """Queries and keys, normalised and rotated by halves. With HAS_CACHE, keys and values go to the cache, else keys to `out`, too.

    Grid: [tokens, blocks of HEADS heads; queries' first, then keys', and with HAS_CACHE values'].
    """
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    index = tl.arange(0, BLOCK)[None, :]
    is_query, is_key = head < NUM_Q_HEADS, (head >= NUM_Q_HEADS) & (head < NUM_Q_HEADS + NUM_KV_HEADS)
    mask = (is_query | is_key) & (index < HEAD_DIM)
    is_rotated = index < ROTARY_DIM
    # Dimension i is rotated with i + ROTARY_DIM / 2, or the other way round.
    other = tl.where(index < ROTARY_DIM // 2, index + ROTARY_DIM // 2, index - ROTARY_DIM // 2)
    other = tl.where(is_rotated, other, index)
    start = qkv + token * qkv_stride + head * HEAD_DIM
    x = tl.load(start + index, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(start + other, mask=mask, other=0.0).to(tl.float32)
    if HAS_NORMS:
        scale = tl.rsqrt(tl.sum(x * x, 1) / HEAD_DIM + eps)[:, None]
        in_head = index < HEAD_DIM
        x_weight = tl.where(is_query, tl.load(q_weight + index, mask=in_head), tl.load(k_weight + index, mask=in_head))
        y_weight = tl.where(is_query, tl.load(q_weight + other, mask=in_head), tl.load(k_weight + other, mask=in_head))
        x, y = x * scale * x_weight, y * scale * y_weight
    cosine = tl.load(cos + token * ROTARY_DIM + index, mask=is_rotated, other=1.0)
    sine = tl.load(sin + token * ROTARY_DIM + index, mask=is_rotated, other=0.0)
    rotated = x * cosine + tl.where(index < ROTARY_DIM // 2, -y, y) * sine
    to_out = (is_query & mask) if HAS_CACHE else mask
    tl.store(out + token * out_stride + head * HEAD_DIM + index, rotated.to(out.dtype.element_ty), mask=to_out)
    if HAS_CACHE:
        slot = tl.load(slots + token) * NUM_KV_HEADS
        where = k_cache + (slot + head - NUM_Q_HEADS) * HEAD_DIM + index
        tl.store(where, rotated.to(k_cache.dtype.element_ty), mask=is_key & mask)
        number = head - NUM_Q_HEADS - NUM_KV_HEADS
        is_value = (number >= 0) & (number < NUM_KV_HEADS) & (index < V_HEAD_DIM)
        where = qkv + token * qkv_stride + (NUM_Q_HEADS + NUM_KV_HEADS) * HEAD_DIM + number * V_HEAD_DIM + index
        value = tl.load(where, mask=is_value)
        where = v_cache + (slot + number) * V_HEAD_DIM + index
        tl.store(where, value.to(v_cache.dtype.element_ty), mask=is_value)
