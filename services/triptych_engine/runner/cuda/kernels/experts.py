"""Triton kernels for mixtures of experts: the choice of each token's experts, and a product of all experts in one launch.

A pair is a token and one of its experts; pair `i` is of token `i // TOP_K`. Each expert has a list of its pairs, with room for all
tokens. The order in a list is that in which programs arrive, and no result depends on it. Blocks of pairs of one expert are
multiplied together, as in vLLM's fused_moe.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triptych_engine.runner.cuda.kernels.layers import activated


@triton.jit(do_not_specialize=["num_tokens"])
def route_kernel(
    logits,
    shares,
    counts,
    pairs,
    num_tokens,
    NUM_EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
    TOP_K: tl.constexpr,
    IS_NORMALIZED: tl.constexpr,
):
    """Choose the TOP_K experts of a token with the highest logits; of equal ones the first. Grid: [tokens].

    Each one's share is its softmax; with IS_NORMALIZED the shares of a token add up to 1. shares: [tokens, TOP_K] fp32; counts:
    [NUM_EXPERTS] int32, zeros before, then how many pairs each expert has; pairs: [NUM_EXPERTS, tokens] int32.
    """
    token = tl.program_id(0)
    expert = tl.arange(0, BLOCK)
    is_expert = expert < NUM_EXPERTS
    logit = tl.load(logits + token.to(tl.int64) * NUM_EXPERTS + expert, mask=is_expert, other=float("-inf")).to(tl.float32)
    weight = tl.exp(logit - tl.max(logit, 0))
    rank = tl.full([BLOCK], TOP_K, tl.int32)
    for number in tl.static_range(TOP_K):
        best = tl.argmax(logit, 0)
        rank = tl.where(expert == best, number, rank)
        logit = tl.where(expert == best, float("-inf"), logit)
    is_chosen = (rank < TOP_K) & is_expert  # with NaN, anything could be the highest
    total = tl.sum(tl.where(is_chosen, weight, 0.0), 0) if IS_NORMALIZED else tl.sum(weight, 0)
    pair = token * TOP_K + rank
    tl.store(shares + pair, weight / total, mask=is_chosen)
    place = tl.atomic_add(counts + expert, 1, mask=is_chosen, sem="relaxed")
    tl.store(pairs + expert.to(tl.int64) * num_tokens + place, pair, mask=is_chosen)


@triton.jit(do_not_specialize=["num_tokens"])
def experts_kernel(
    x,
    matrices,
    out,
    counts,
    pairs,
    num_tokens,
    NUM_EXPERTS: tl.constexpr,
    PADDED_EXPERTS: tl.constexpr,
    PAIRS_PER_ROW: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_GELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """Multiply each pair's row with the weights of its expert. Grid: [blocks of ROWS pairs, at most; blocks of COLUMNS outputs].

    x: [rows, IN], of which each is that of PAIRS_PER_ROW pairs; matrices: [NUM_EXPERTS, OUT, IN]; out: [pairs, OUT]. With IS_GATED,
    matrices are [NUM_EXPERTS, 2 * OUT, IN], gate before up, and the result is activated(gate) * up. counts, pairs: see
    `route_kernel`.
    """
    # Which expert's block this is: they have their blocks one after the other.
    experts = tl.arange(0, PADDED_EXPERTS)
    counted = tl.load(counts + experts, mask=experts < NUM_EXPERTS, other=0)
    blocks = (counted + ROWS - 1) // ROWS
    block = tl.program_id(0)
    expert = tl.sum((tl.cumsum(blocks, 0) <= block).to(tl.int32), 0)
    if expert >= NUM_EXPERTS:
        return  # there are fewer blocks
    first = tl.sum(tl.where(experts < expert, blocks, 0), 0)
    count = tl.sum(tl.where(experts == expert, counted, 0), 0)

    number = (block - first) * ROWS + tl.arange(0, ROWS)
    is_pair = (number < count)[:, None]
    pair = tl.load(pairs + expert.to(tl.int64) * num_tokens + number, mask=number < count, other=0).to(tl.int64)[:, None]
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    row_of = x + pair // PAIRS_PER_ROW * IN
    column_of = matrices + (expert.to(tl.int64) * (2 * OUT if IS_GATED else OUT) + column) * IN
    result = tl.zeros([ROWS, COLUMNS], tl.float32)
    up = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, IN, INNER):
        inner = start + tl.arange(0, INNER)
        rows = tl.load(row_of + inner[None, :], mask=is_pair & (inner < IN)[None, :], other=0.0)
        mask = (inner < IN)[:, None] & (column < OUT)
        columns = tl.load(column_of + inner[:, None], mask=mask, other=0.0)
        result = tl.dot(rows, columns, acc=result, input_precision="tf32x3")
        if IS_GATED:
            columns = tl.load(column_of + OUT * IN + inner[:, None], mask=mask, other=0.0)
            up = tl.dot(rows, columns, acc=up, input_precision="tf32x3")
    if IS_GATED:
        result = activated(result, IS_GELU) * up
    tl.store(out + pair * OUT + column, result.to(out.dtype.element_ty), mask=is_pair & (column < OUT))
