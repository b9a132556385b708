"""The blocks of GGUF's quantised tensors. Layouts as in llama.cpp's ggml-quants.h; gguf.quants is the reference in tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from triptych_engine.runner.quantization.formats import (
    Q4,
    Q4_MIN,
    Q4_NESTED,
    Q5,
    Q5_MIN,
    Q5_NESTED,
    Q6_NESTED,
    Q8,
    QuantFormat,
    QuantizedRows,
)


@dataclass(frozen=True, slots=True)
class BlockType:
    """A type of GGUF tensors."""

    name: str
    #: Weights and bytes of a block.
    block: int
    num_bytes: int
    format: QuantFormat
    #: [rows, blocks, num_bytes] uint8 -> the rows.
    parse: Callable[[torch.Tensor], QuantizedRows]

    def rows(self, raw: torch.Tensor) -> QuantizedRows:
        """The weights in raw bytes, [rows, bytes of a row] uint8."""
        return self.parse(raw.view(raw.shape[0], -1, self.num_bytes))


def _half(raw: torch.Tensor, at: int) -> torch.Tensor:
    """[rows, blocks] float16, from two bytes of each block."""
    return raw[..., at : at + 2].contiguous().view(torch.float16)[..., 0]


def _nibbles(raw: torch.Tensor) -> torch.Tensor:
    """The low halves of all bytes in the last dimension, then the high halves."""
    return torch.cat([raw & 0xF, raw >> 4], -1)


def _bits(raw: torch.Tensor, at: int) -> torch.Tensor:
    """[rows, blocks, 32]: the bits of four bytes of each block, the lowest first."""
    return (raw[..., at : at + 4, None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(-2)


def _q4_0(raw: torch.Tensor) -> QuantizedRows:
    return QuantizedRows(Q4, _nibbles(raw[..., 2:]).flatten(1), _half(raw, 0))


def _q4_1(raw: torch.Tensor) -> QuantizedRows:
    return QuantizedRows(Q4_MIN, _nibbles(raw[..., 4:]).flatten(1), _half(raw, 0), _half(raw, 2))


def _q5_0(raw: torch.Tensor) -> QuantizedRows:
    return QuantizedRows(Q5, (_nibbles(raw[..., 6:]) | _bits(raw, 2) << 4).flatten(1), _half(raw, 0))


def _q5_1(raw: torch.Tensor) -> QuantizedRows:
    return QuantizedRows(Q5_MIN, (_nibbles(raw[..., 8:]) | _bits(raw, 4) << 4).flatten(1), _half(raw, 0), _half(raw, 2))


def _q8_0(raw: torch.Tensor) -> QuantizedRows:
    return QuantizedRows(Q8, (raw[..., 2:] ^ 0x80).flatten(1), _half(raw, 0))


def _scales_of_6_bits(raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, groups, 1] scales and minimums, from 12 bytes of each block, [rows, blocks, 12]."""
    first, second, third = raw[..., :4], raw[..., 4:8], raw[..., 8:]
    scales = torch.cat([first & 63, third & 0xF | first >> 6 << 4], -1)
    minimums = torch.cat([second & 63, third >> 4 | second >> 6 << 4], -1)
    return scales.flatten(1)[..., None], minimums.flatten(1)[..., None]


def _nested(raw: torch.Tensor, values: torch.Tensor, form: QuantFormat) -> QuantizedRows:
    return QuantizedRows(form, values.flatten(1), _half(raw, 0), _half(raw, 2), *_scales_of_6_bits(raw[..., 4:16]))


def _q4_k(raw: torch.Tensor) -> QuantizedRows:
    return _nested(raw, _nibbles(raw[..., 16:].unflatten(-1, (4, 32))), Q4_NESTED)


def _q5_k(raw: torch.Tensor) -> QuantizedRows:
    low = _nibbles(raw[..., 48:].unflatten(-1, (4, 32))).flatten(-2).unflatten(-1, (8, 32))
    high = raw[..., None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1  # bit i of byte j: weight j of group i
    return _nested(raw, low | high << 4, Q5_NESTED)


def _q6_k(raw: torch.Tensor) -> QuantizedRows:
    low = _nibbles(raw[..., :128].unflatten(-1, (2, 64)))  # of each half block: 4 groups of 32
    high = raw[..., 128:192].unflatten(-1, (2, 1, 32)) >> torch.arange(0, 8, 2, dtype=torch.uint8)[:, None] & 3
    scales = raw[..., 192:208].view(torch.int8).flatten(1).unflatten(-1, (-1, 2))
    return QuantizedRows(Q6_NESTED, (low | high.flatten(-2) << 4).flatten(1), _half(raw, 208), part_scales=scales)


BLOCK_TYPES = {
    kind.name: kind
    for kind in (
        BlockType("Q4_0", 32, 18, Q4, _q4_0),
        BlockType("Q4_1", 32, 20, Q4_MIN, _q4_1),
        BlockType("Q5_0", 32, 22, Q5, _q5_0),
        BlockType("Q5_1", 32, 24, Q5_MIN, _q5_1),
        BlockType("Q8_0", 32, 34, Q8, _q8_0),
        BlockType("Q4_K", 256, 144, Q4_NESTED, _q4_k),
        BlockType("Q5_K", 256, 176, Q5_NESTED, _q5_k),
        BlockType("Q6_K", 256, 210, Q6_NESTED, _q6_k),
    )
}
