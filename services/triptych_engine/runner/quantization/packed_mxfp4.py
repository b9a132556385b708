"""Weights that are floats of 4 bits (e2m1) in blocks of 32 that share an exponent, as gpt-oss stores its experts in safetensors.

The format is MXFP4 of the OCP Microscaling Formats specification 1.0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from triptych.errors import StartupError, UnsupportedModelError

from triptych_engine.runner.quantization.formats import F4, QuantizedRows
from triptych_engine.runner.quantization.tensor import QuantizedTensor

#: Exponents are stored with this added.
_BIAS = 127
#: Powers of two that fp16 holds. A block of weights below them is smaller than 2^-21, and becomes zero.
_LEAST, _LARGEST = -24, 15


def mxfp4_tensor(
    name: str, shape: tuple[int, int], read_blocks: Callable[[int, int], torch.Tensor], exponents: torch.Tensor
) -> QuantizedTensor:
    """A weight [out, in].

    Args:
        name: of the weight, for errors.
        read_blocks: first row, row after the last -> [rows, in / 32, 16] uint8; the low half of a byte comes first.
        exponents: [out, in / 32] uint8.

    Raises:
        StartupError: its parts do not fit together.
        UnsupportedModelError: a block is larger than fp16 holds.
    """
    out_features, in_features = shape
    if tuple(exponents.shape) != (out_features, in_features // F4.block) or in_features % F4.block:
        raise StartupError(f"{name} has {list(exponents.shape)} scales for {list(shape)} weights in blocks of {F4.block}")
    powers = exponents.int() - _BIAS - 1  # of half the scale: see TABLE
    if powers.max() > _LARGEST:
        raise UnsupportedModelError(f"{name} has a scale of 2^{int(powers.max()) + 1}, which is not supported")
    scales = torch.where(powers < _LEAST, 0.0, torch.exp2(powers.float())).half()

    def read(begin: int, end: int) -> QuantizedRows:
        blocks = read_blocks(begin, end)
        return QuantizedRows(F4, torch.stack([blocks & 0xF, blocks >> 4], -1).flatten(1), scales[begin:end])

    return QuantizedTensor(F4, out_features, in_features, read)
