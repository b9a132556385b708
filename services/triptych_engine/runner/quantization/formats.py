"""The formats of quantised weights, and rows of a weight in one of them.

Every format has the same form: a weight is value * scale + minimum, where the value is an unsigned integer of a few bits, or a
float of 8 bits. Readers of checkpoints bring what they find into this form; the CPU kernels pack it (csrc/linear/quant_layout.h).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

#: Inputs of a weight that the kernels take together.
GROUP = 32
#: The minimum of a block's weights. offset: none is stored, it is -scale * 2^(bits - 1); half: it is stored as fp16; zero: a
#: zero point is stored as a byte, and it is -scale * zero point; none: it is zero, values are floats (e4m3), and scales have 32
#: bits; table: it is zero, and values are floats of 4 bits (e2m1) that TABLE has.
Minimum = Literal["offset", "half", "zero", "none", "table"]
#: Twice the floats of 4 bits, so that they are integers.
TABLE = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """How a weight is stored. It mirrors QuantFormat in csrc/linear/quant_layout.h."""

    name: str
    #: Index of the format in csrc/linear/quant_format.h.
    index: int
    bits: int
    #: Inputs that share a scale.
    block: int
    minimum: Minimum
    #: Integer scales of each group of 32 inputs, 8 bits each, that the block's scale is multiplied with; signed if there is no
    #: stored minimum. With a stored one, there are as many integer minimums, and the minimums are subtracted.
    scales: int = 0

    @property
    def has_minimums(self) -> bool:
        """Whether there are integer minimums."""
        return self.scales > 0 and self.minimum == "half"

    @property
    def is_float(self) -> bool:
        """Whether the values are floats. Inputs of their products are not rounded."""
        return self.minimum == "none"


Q4 = QuantFormat("q4", 0, 4, 32, "offset")
Q4_MIN = QuantFormat("q4-min", 1, 4, 32, "half")
Q5 = QuantFormat("q5", 2, 5, 32, "offset")
Q5_MIN = QuantFormat("q5-min", 3, 5, 32, "half")
Q8 = QuantFormat("q8", 4, 8, 32, "offset")
Q4_NESTED = QuantFormat("q4-nested", 5, 4, 256, "half", 1)
Q5_NESTED = QuantFormat("q5-nested", 6, 5, 256, "half", 1)
Q6_NESTED = QuantFormat("q6-nested", 7, 6, 256, "offset", 2)
Q4_ZERO = QuantFormat("q4-zero", 8, 4, 128, "zero")
Q4_ZERO_32 = QuantFormat("q4-zero-32", 9, 4, 32, "zero")
F8 = QuantFormat("f8", 10, 8, 128, "none")
F4 = QuantFormat("f4", 11, 4, 32, "table")
FORMATS = (Q4, Q4_MIN, Q5, Q5_MIN, Q8, Q4_NESTED, Q5_NESTED, Q6_NESTED, Q4_ZERO, Q4_ZERO_32, F8, F4)

#: What `--quantization` makes of weights while they are loaded.
ON_THE_FLY = {"int8": Q8, "int4": Q4_MIN}
#: What it makes of the output head, as the usual GGUF files do: of all layers, its error moves the output most.
HEAD_ON_THE_FLY = Q8


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Rows of a weight. blocks: ceil(in / block); groups: ceil(in / 32)."""

    format: QuantFormat
    #: [rows, in] uint8; of floats their bits.
    values: torch.Tensor
    #: [rows, blocks] float16, of floats of 8 bits float32; of floats of 4 bits the half, see TABLE.
    scales: torch.Tensor
    #: [rows, blocks] float16 for `half`, uint8 for `zero`, else None.
    minimums: torch.Tensor | None = None
    #: [rows, groups, scales] int8 without a stored minimum, else uint8; None if the format has no integer scales.
    part_scales: torch.Tensor | None = None
    #: [rows, groups, scales] uint8, or None.
    part_minimums: torch.Tensor | None = None

    def dequantize(self) -> torch.Tensor:
        """The weights, [rows, in] float32. The kernels' products are checked against these."""
        if self.format.is_float:
            return self.values.view(torch.float8_e4m3fn).float() * self._spread(
                self.scales, self.format.block, self.values.shape[1]
            )
        if self.format.minimum == "table":
            table = torch.tensor(TABLE, dtype=torch.float32)
            return table[self.values.long()] * self._spread(self.scales.float(), self.format.block, self.values.shape[1])
        scale, minimum = self.scales.float(), self._block_minimums()
        if self.part_scales is not None:
            size = GROUP // self.format.scales
            parts = self.part_scales.flatten(1).float()
            per_block = self.format.block // size
            scale, minimum = (self._spread(part, per_block, parts.shape[1]) for part in (scale, minimum))
            scale = scale * parts
            minimum = -minimum * self.part_minimums.flatten(1).float() if self.part_minimums is not None else minimum * parts
        else:
            size = self.format.block
        num_inputs = self.values.shape[1]
        return self.values.float() * self._spread(scale, size, num_inputs) + self._spread(minimum, size, num_inputs)

    def _block_minimums(self) -> torch.Tensor:
        if self.minimums is None:
            return self.scales.float() * -float(1 << self.format.bits - 1)
        return self.minimums.float() if self.format.minimum == "half" else -(self.scales.float() * self.minimums.float())

    @staticmethod
    def _spread(per_block: torch.Tensor, size: int, total: int) -> torch.Tensor:
        return per_block.repeat_interleave(size, 1)[:, :total]


def quantize_rows(weight: torch.Tensor, form: QuantFormat) -> QuantizedRows:
    """Quantise a weight, [rows, in] float32, to the nearest values.

    Args:
        form: one without integer scales; with a stored minimum, blocks need not be symmetric.

    Returns:
        rows of which a block with a value that is not finite is not finite either.
    """
    rows, num_inputs = weight.shape
    blocks = torch.nn.functional.pad(weight, (0, -num_inputs % form.block)).view(rows, -1, form.block)
    values, scales, minimums = _between(blocks, form.bits) if form.minimum == "half" else _around_zero(blocks, form.bits)
    return QuantizedRows(form, values.to(torch.uint8).view(rows, -1)[:, :num_inputs].contiguous(), scales, minimums)


def _around_zero(blocks: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor, None]:
    """Values, scales and no minimums of blocks, [..., block]: symmetric, so that the largest magnitude is kept."""
    most = 2 ** (bits - 1) - 1
    scales = (blocks.abs().amax(-1) / most).half()
    inverse = torch.where(scales > 0, 1 / scales.float(), 0)
    return (blocks * inverse[..., None]).round().nan_to_num(0).clamp(-most - 1, most) + (most + 1), scales, None


def _between(blocks: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values, scales and minimums of blocks, [..., block]: from the smallest value to the largest, or closer by least squares."""
    most = 2**bits - 1
    low, high = blocks.amin(-1), blocks.amax(-1)

    def rounded(scales: torch.Tensor, minimums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        scales, minimums = scales.half(), minimums.half()
        inverse = torch.where(scales > 0, 1 / scales.float(), 0)
        values = ((blocks - minimums.float()[..., None]) * inverse[..., None]).round().nan_to_num(0).clamp(0, most)
        error = (values * scales.float()[..., None] + minimums.float()[..., None] - blocks).square().sum(-1)
        return values, scales, minimums, error

    values, scales, minimums, error = rounded((high - low) / most, low)
    # The line through the weights at these values; where they are all equal, there is none.
    mean_value, mean = values.mean(-1), blocks.mean(-1)
    around = values - mean_value[..., None]
    slope = (around * blocks).sum(-1) / around.square().sum(-1)
    others = rounded(slope.nan_to_num(0), mean - slope.nan_to_num(0) * mean_value)
    better = (others[3] < error) & error.isfinite()  # else fp16 does not hold the minimum or the scale
    return (
        torch.where(better[..., None], others[0], values),
        torch.where(better, others[1], scales),
        torch.where(better, others[2], minimums),
    )
