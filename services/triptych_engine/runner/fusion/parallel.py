"""The kernels of a device for a rank's share of a model: what the ranks add up and join stays where it is between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from triptych_engine.runner.fusion.kernels import FusedKernels, LayerParts, MoEParts, PackedLinear, WholeLayer, WholeModel
from triptych_engine.runner.parallel.group import HostMemory
from triptych_engine.runner.parallel.modules import GatheredLinear, RowParallelLinear


class SummedLinear(PackedLinear):
    """A packed layer whose inputs are divided among the ranks: the sum of all ranks' outputs."""

    def __init__(self, product: PackedLinear, layer: RowParallelLinear) -> None:
        super().__init__(product.in_features, product.out_features)
        self.product, self._sum = product, layer.sum

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._sum(self.product(x))


class ParallelKernels:
    """Implements FusedKernels with those of the device.

    Args:
        memory: with which the device's kernels can add up; None if layers are computed in parts, because the ranks wait for each
            other within them.
    """

    def __init__(self, kernels: FusedKernels, memory: HostMemory | None) -> None:
        self._kernels, self._memory = kernels, memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def takes(self, linears: Sequence[nn.Module | None]) -> bool:
        return self._kernels.takes([_within(linear) for linear in linears])

    def pack(self, *linears: Any) -> PackedLinear:
        packed = self._kernels.pack(*map(_within, linears))
        return SummedLinear(packed, linears[0]) if isinstance(linears[0], RowParallelLinear) else packed

    def head(self, linear: nn.Module) -> nn.Module | None:
        if not isinstance(linear, GatheredLinear):
            return self._kernels.head(linear)
        own = linear.linear
        head = self._kernels.head(own) or (self._kernels.pack(own) if self._kernels.takes([own]) else None)
        return None if head is None else linear.with_linear(head)

    def moe(self, parts: MoEParts) -> None:
        return None  # the ranks add up what their shares of the experts compute

    def whole_layer(self, parts: LayerParts) -> WholeLayer | None:
        qkv, out, gate_up, down = parts.products
        if self._memory is None or not isinstance(out, SummedLinear) or not isinstance(down, SummedLinear):
            return None
        own = replace(parts, products=(qkv, out.product, gate_up, down.product), ranks=self._memory.address)
        return self._kernels.whole_layer(own)

    def whole_model(
        self, stack: Any, embedding: nn.Module, rotary: Any, norm: nn.Module, head: nn.Module, embedding_scale: float
    ) -> WholeModel | None:
        if not isinstance(head, GatheredLinear):
            return None
        whole = self._kernels.whole_model(stack, embedding, rotary, norm, head.linear, embedding_scale)
        return None if whole is None else _JoinedModel(whole, head)


class _JoinedModel:
    """A decoder that computes a rank's part of the logits."""

    def __init__(self, whole: WholeModel, head: GatheredLinear) -> None:
        self._whole, self._head = whole, head
        self.takes = whole.takes

    def logits(self, *arguments: Any) -> torch.Tensor:
        return self._head.join(self._whole.logits(*arguments))


def _within(linear: nn.Module | None) -> nn.Module | None:
    """The rank's own part of a layer whose outputs are added up."""
    return linear.linear if isinstance(linear, RowParallelLinear) and not linear.takes_all else linear
