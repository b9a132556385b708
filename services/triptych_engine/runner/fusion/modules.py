"""Modules that replace those of a model: the same results with fewer and faster operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from triptych_engine.runner.fusion.kernels import FusedKernels, GatedRMSNorm, Norm, PackedLinear

#: By the names of `FusedKernels.activations`.
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": nn.functional.silu,
    "gelu_tanh": functools.partial(nn.functional.gelu, approximate="tanh"),
}


def activation_name(act_fn: Callable[[torch.Tensor], torch.Tensor]) -> str | None:
    """Which of `ACTIVATIONS` it is; None if it is another one."""
    sample = torch.linspace(-20, 20, 401)
    try:
        computed = act_fn(sample)
    except (RuntimeError, TypeError):  # it has parameters elsewhere, or takes other arguments
        return None
    return next((name for name, known in ACTIVATIONS.items() if torch.allclose(computed, known(sample), atol=1e-6)), None)


class SharedProduct:
    """One product for several layers that are called with the same input, one after the other."""

    def __init__(self, linears: Sequence[nn.Linear | PackedLinear], pack: Callable[..., PackedLinear]) -> None:
        self.linear = pack(*linears)
        #: Number of outputs of each layer.
        self.sizes = [linear.out_features for linear in linears]
        self._input: torch.Tensor | None = None  # held, so that no other tensor can be mistaken for it
        self._outputs: dict[int, torch.Tensor] = {}  # layer -> its output, until it is taken

    def take(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """The output of one of the layers. The first call for an input computes the outputs of all layers."""
        if x is not self._input or index not in self._outputs:
            self._input = x
            self._outputs = dict(enumerate(self.linear(x).split(self.sizes, -1)))
        output = self._outputs.pop(index)
        if not self._outputs:
            self._input = None
        return output


class LinearPart(nn.Module):
    """One of the layers of a shared product. It returns its slice of the result."""

    def __init__(self, product: SharedProduct, index: int) -> None:
        super().__init__()
        self._shared, self._index = product, index

    @property
    def product(self) -> PackedLinear:
        """The product that it is a part of."""
        return self._shared.linear

    @property
    def outputs(self) -> tuple[int, int]:
        """Index of its first output among those of the product, and how many it has."""
        sizes = self._shared.sizes
        return sum(sizes[: self._index]), sizes[self._index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._shared.take(self._index, x)


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)) as two products and one kernel between them. x: [..., hidden_size].

    Args:
        inputs: gate and up by their names in the family, or both in one.
        output: the name of down.
        activation: one of `FusedKernels.activations`.
    """

    def __init__(self, inputs: dict[str, Any], output: str, down: Any, activation: str, kernels: FusedKernels) -> None:
        super().__init__()
        self.activation, self._kernels = activation, kernels
        #: Its two products; the first one is gate and up, concatenated.
        self.gate_up, self.down = kernels.pack(*inputs.values()), kernels.pack(down)
        #: For each of these, the name and the number of outputs of each of its linear layers.
        self.linears = {name: int(one.out_features) for name, one in inputs.items()}, {output: self.down.out_features}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self._kernels.act_mul(self.gate_up(x), self.activation))


class FusedRMSNorm(nn.Module):
    """x / rms(x) * weight in one pass; takes fp32 or bf16, computes in fp32, returns `dtype`. x: [..., hidden_size]."""

    def __init__(self, weight: torch.Tensor, eps: float, dtype: torch.dtype, kernels: FusedKernels) -> None:
        super().__init__()
        self.scale, self.eps, self.dtype, self._kernels = weight.float().contiguous(), eps, dtype, kernels

    @property
    def norm(self) -> Norm:
        """What a kernel needs of it."""
        return Norm(self.scale, self.eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernels.rms_norm(x, self.scale, self.eps, self.dtype)


class FusedGatedRMSNorm(nn.Module):
    """x / rms(x) * weight * silu(gate) in one pass, as behind gated delta rules; or, if the gate comes first, the norm of
    x * silu(gate), as behind Mamba-2. x, gate: [..., size]."""

    def __init__(self, weight: torch.Tensor, eps: float, compute: GatedRMSNorm, *, gates_first: bool) -> None:
        super().__init__()
        self.scale, self.eps, self.gates_first, self._compute = weight.float().contiguous(), eps, gates_first, compute

    @property
    def norm(self) -> Norm:
        """What a kernel needs of it."""
        return Norm(self.scale, self.eps)

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return self._compute(x, gate.to(x.dtype), self.scale, self.eps, self.gates_first)
