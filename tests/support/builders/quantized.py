"""Random quantised weights."""

from __future__ import annotations

import torch
from triptych_engine.runner.quantization.formats import GROUP, QuantFormat, QuantizedRows

#: Bits of the largest float of 8 bits; the next ones are NaN.
LARGEST_FLOAT = 0x7E


def random_rows(form: QuantFormat, rows: int, in_features: int, seed: int = 0) -> QuantizedRows:
    """Weights of about the size of a real model's. The smallest and the largest values are among them."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    blocks, groups = -(-in_features // form.block), -(-in_features // GROUP)
    scales = torch.rand(rows, blocks, generator=generator) * 0.01 + 0.005
    if form.is_float:
        values = integers(0, LARGEST_FLOAT + 1, rows, in_features) | integers(0, 2, rows, in_features) << 7
        values[:, 0], values[:, -1] = 1, LARGEST_FLOAT  # the smallest is subnormal
        return QuantizedRows(form, values.to(torch.uint8), scales / 50)
    scales = scales.half()
    minimums = None
    if form.minimum == "half":
        minimums = (torch.randn(rows, blocks, generator=generator) * 0.05).half()
    elif form.minimum == "zero":
        minimums = integers(0, 16, rows, blocks).to(torch.uint8)
    part_scales = part_minimums = None
    if form.scales and form.has_minimums:
        part_scales, part_minimums = (integers(0, 64, rows, groups, form.scales).to(torch.uint8) for _ in range(2))
    elif form.scales:
        part_scales = integers(-128, 128, rows, groups, form.scales).to(torch.int8)
    values = integers(0, 1 << form.bits, rows, in_features).to(torch.uint8)
    values[:, 0], values[:, -1] = 0, (1 << form.bits) - 1
    return QuantizedRows(form, values, scales, minimums, part_scales, part_minimums)
