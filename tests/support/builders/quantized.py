"""Random quantised weights."""

from __future__ import annotations

import torch
from triptych_engine.runner.quantization.formats import GROUP, QuantFormat, QuantizedRows


def random_rows(form: QuantFormat, rows: int, in_features: int, seed: int = 0) -> QuantizedRows:
    """Weights of about the size of a real model's. The smallest and the largest values are among them."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    blocks, groups = -(-in_features // form.block), -(-in_features // GROUP)
    scales = (torch.rand(rows, blocks, generator=generator) * 0.01 + 0.005).half()
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
