"""Weights that are floats of 8 bits (e4m3), as DeepSeek's `fp8` and compressed-tensors store them in safetensors.

A weight is value * scale, with a scale for the whole weight, for each output, or for each block of outputs and inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from triptych.errors import StartupError, UnsupportedModelError

from triptych_engine.runner.quantization.formats import F8, QuantizedRows
from triptych_engine.runner.quantization.packed_int import Read
from triptych_engine.runner.quantization.tensor import QuantizedTensor

#: Bits of a float without its sign that stand for NaN.
_NAN = 0x7F


@dataclass(frozen=True, slots=True)
class FloatWeight:
    """A weight in memory, before its rows are packed for a device."""

    #: [out, in] uint8, the bits.
    values: torch.Tensor
    #: [blocks of outputs, blocks of inputs] float32.
    scales: torch.Tensor
    #: Outputs and inputs of a block.
    block: tuple[int, int]

    def tensor(self, name: str) -> QuantizedTensor:
        """The weight in the format of floats.

        Raises:
            UnsupportedModelError: its blocks are too short. The message has the name.
            StartupError: its parts do not fit together, or it has values that are no numbers.
        """
        out_features, in_features = self.values.shape
        rows, columns = self.block
        expected = (-(-out_features // rows), -(-in_features // columns))
        if tuple(self.scales.shape) != expected:
            raise StartupError(
                f"{name} has {list(self.scales.shape)} scales for {[out_features, in_features]} weights in blocks of "
                f"{list(self.block)}; {list(expected)} are needed"
            )
        if columns % F8.block and expected[1] > 1:
            raise UnsupportedModelError(f"{name} has blocks of {columns} inputs; multiples of {F8.block} are supported")
        if not self.scales.isfinite().all() or (self.values & _NAN).eq(_NAN).any():
            raise StartupError(f"{name} has values that are not finite")
        count = -(-in_features // F8.block)
        scales = self.scales.repeat_interleave(-(-columns // F8.block), 1)[:, :count]

        def read(begin: int, end: int) -> QuantizedRows:
            return QuantizedRows(F8, self.values[begin:end], scales[torch.arange(begin, end) // rows])

        return QuantizedTensor(F8, out_features, in_features, read)


def read_float8(read: Read, config: Mapping[str, Any], name: str) -> FloatWeight | None:
    """weight [out, in] float8_e4m3fn; weight_scale or weight_scale_inv: one number, [out] or [out, 1], or one of each block.

    config: has the sizes of a block as `weight_block_size` or `block_structure`, if there are blocks.
    """
    weight = read("weight")
    if weight is None or weight.dtype != torch.float8_e4m3fn:
        return None
    given = [scales for scales in (read("weight_scale_inv"), read("weight_scale")) if scales is not None]
    if not given:
        raise UnsupportedModelError(f"{name} is quantised and has no weight_scale")
    out_features, in_features = weight.shape
    if not given[0].is_floating_point():
        raise UnsupportedModelError(
            f"the scales of {name} are {str(given[0].dtype).removeprefix('torch.')}, which is not supported"
        )
    if config.get("strategy") not in (None, "tensor", "channel", "block"):
        raise UnsupportedModelError(f"{name} has scales by {config['strategy']}; by tensor, channel and block are supported")
    scales, size = given[0].float(), config.get("weight_block_size") or config.get("block_structure")
    if size is not None:
        rows, columns = size.split("x") if isinstance(size, str) else size
        block = (int(rows), int(columns))
    else:
        block = (out_features if scales.numel() == 1 else 1, in_features)
        scales = scales.reshape(1, 1) if scales.numel() == 1 else scales[:, None] if scales.dim() == 1 else scales
    return FloatWeight(weight.view(torch.uint8), scales, block)
