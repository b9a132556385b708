"""A rank's share of a checkpoint whose weights are quantised: rows of any number, columns in whole blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn
from transformers import PretrainedConfig
from triptych.errors import UnsupportedModelError

from triptych_engine.runner.parallel.division import Cut
from triptych_engine.runner.parallel.plan import Share
from triptych_engine.runner.quantization.experts import ExpertsShape, ExpertWeights
from triptych_engine.runner.quantization.filling import WeightSource
from triptych_engine.runner.quantization.formats import GROUP, QuantizedRows
from triptych_engine.runner.quantization.tensor import QuantizedTensor


class ShareSource:
    """Implements `WeightSource` with a rank's part of what another one has.

    Args:
        whole: the undivided model, whose parameters may be on the meta device.
    """

    def __init__(self, source: WeightSource, share: Share, whole: nn.Module) -> None:
        self._source, self._share, self._whole = source, share, whole
        self._shapes = {name: tuple(one.shape) for name, one in whole.named_parameters(remove_duplicate=False)}

    def quantized(self, name: str, shape: tuple[int, int]) -> QuantizedTensor | None:
        rows, columns = self._shapes[name]
        weight, cut = self._source.quantized(name, (rows, columns)), self._share.cuts.get(name)
        return weight if weight is None or cut is None else part_of(weight, cut, name)

    def experts(self, name: str, shape: ExpertsShape) -> Iterator[ExpertWeights] | None:
        whole = ExpertsShape.of(self._whole.get_submodule(name))
        experts = None if whole is None else self._source.experts(name, whole)
        return None if experts is None else (self._expert(name, one) for one in experts)

    def _expert(self, name: str, weights: ExpertWeights) -> ExpertWeights:
        both, inner = self._share.cuts[f"{name}.gate_up_proj"], self._share.cuts[f"{name}.down_proj"]
        rows = both if len(weights.gate_up) == 1 else inner  # gate and up are cut alike
        bias, down_bias = weights.gate_up_bias, weights.down_bias
        return ExpertWeights(
            tuple(part_of(one, rows.along(-2), f"{name}.gate_up_proj") for one in weights.gate_up),
            part_of(weights.down, inner.along(-1), f"{name}.down_proj"),
            None if bias is None else _pieces(bias, both.along(-1)),
            None if down_bias is None else self._once(down_bias),
        )

    def plain(self, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
        value, cut = self._source.plain(name, self._shapes.get(name, shape)), self._share.cuts.get(name)
        if value is not None and name in self._share.biases:
            value = self._once(value)
        return value if value is None or cut is None else _pieces(value, cut)

    def _once(self, bias: torch.Tensor) -> torch.Tensor:
        """What is added to the sum of all ranks: one of them has it."""
        return torch.zeros_like(bias) if self._share.rank else bias

    @property
    def largest_block(self) -> int:
        return self._source.largest_block

    def is_tied(self, config: PretrainedConfig) -> bool:
        return self._source.is_tied(config)


def part_of(weight: QuantizedTensor, cut: Cut, name: str) -> QuantizedTensor:
    """Rows or columns of a weight. Raises UnsupportedModelError if columns do not begin and end with blocks."""
    if cut.dim == -2:
        return replace(weight, out_features=cut.length, read=lambda begin, end: _rows(weight, cut, begin, end))
    block = max(weight.format.block, GROUP)
    if any(edge % block and edge != weight.in_features for span in cut.ranges for edge in span):
        where = ", ".join(f"{begin} to {end}" for begin, end in cut.ranges)
        raise UnsupportedModelError(f"{name} cannot be divided among ranks: columns {where} are not whole blocks of {block}")
    return replace(weight, in_features=cut.length, read=lambda begin, end: _columns(weight.read(begin, end), cut))


def _rows(weight: QuantizedTensor, cut: Cut, begin: int, end: int) -> QuantizedRows:
    """The part's rows from `begin` to `end`, which may come from several ranges."""
    read, first = [], 0
    for start, stop in cut.ranges:
        some = max(begin, first), min(end, first + stop - start)
        if some[0] < some[1]:
            read.append(weight.read(start + some[0] - first, start + some[1] - first))
        first += stop - start
    return _joined(read, 0)


def _columns(rows: QuantizedRows, cut: Cut) -> QuantizedRows:
    def some(tensor: torch.Tensor | None, size: int, begin: int, end: int) -> torch.Tensor | None:
        return None if tensor is None else tensor[:, begin // size : -(-end // size)]

    block, parts = rows.format.block, []
    for begin, end in cut.ranges:
        scales = some(rows.scales, block, begin, end)
        assert scales is not None  # noqa: S101
        minimums = some(rows.minimums, block, begin, end)
        groups = (some(one, GROUP, begin, end) for one in (rows.part_scales, rows.part_minimums))
        parts.append(QuantizedRows(rows.format, rows.values[:, begin:end], scales, minimums, *groups))
    return _joined(parts, 1)


def _joined(parts: list[QuantizedRows], dim: int) -> QuantizedRows:
    def join(name: str) -> torch.Tensor:
        return torch.cat([getattr(part, name) for part in parts], dim)

    first = parts[0]
    names = ("values", "scales", "minimums", "part_scales", "part_minimums")
    tensors = (None if getattr(first, name) is None else join(name) for name in names)
    return QuantizedRows(first.format, *tensors)  # type: ignore[arg-type]


def _pieces(tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
    return torch.cat([tensor.narrow(cut.dim, begin, end - begin) for begin, end in cut.ranges], cut.dim)
