"""The experts of a mixture in one call of the kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import nn

from triptych_engine.runner.cpu.kernel_args import ExpertsArgs, PackedWeight
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cpu.linear.layers import KernelLinear
from triptych_engine.runner.cpu.linear.packing import packed_weight
from triptych_engine.runner.fusion.kernels import PackedLinear
from triptych_engine.runner.fusion.modules import activation_name
from triptych_engine.runner.quantization.experts import (
    Activation,
    ClampedSwiglu,
    ExpertModules,
    ExpertsShape,
    Gated,
    activation_of,
    computes_the_same,
)


class KernelExperts(ExpertModules):
    """See ExpertModules. One call for all experts, once all of their layers compute in one of the kernels' formats."""

    def __init__(
        self, gate_up: Sequence[nn.Module], down: Sequence[nn.Module], activation: Activation, kernels: CpuKernels
    ) -> None:
        super().__init__(gate_up, down, activation)
        self._kernels = kernels
        self._kind = _kind_of(activation)
        self._weights: tuple[str, ctypes.Array[PackedWeight], ctypes.Array[PackedWeight]] | None = None

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        if self._kind is None or (packed := self._packed()) is None:
            return super().forward(hidden_states, top_k_index, top_k_weights)
        form, gate_up, down = packed
        x, chosen, shares = hidden_states.float().contiguous(), top_k_index.long().contiguous(), top_k_weights.float().contiguous()
        out, (kind, alpha, limit) = torch.empty(len(x), down[0].out_features), self._kind
        args = ExpertsArgs(
            x=x.data_ptr(), chosen=chosen.data_ptr(), shares=shares.data_ptr(), gate_up=ctypes.addressof(gate_up),
            down=ctypes.addressof(down), out=out.data_ptr(), rows=len(x), top_k=chosen.shape[1], num_experts=len(gate_up),
            alpha=alpha, limit=limit, activation=kind,
        )  # fmt: skip
        words = self._kernels.experts_workspace[form](ctypes.byref(args))
        # The last expert's rows may begin anywhere, and products read a multiple of 16.
        args.workspace = self._kernels.workspace(chosen.numel() + 15, words)
        self._kernels.experts[form](ctypes.byref(args))
        return out.to(hidden_states.dtype)

    def _packed(self) -> tuple[str, ctypes.Array[PackedWeight], ctypes.Array[PackedWeight]] | None:
        """Format and weights of the experts; None while a layer computes in another way, such as before it is quantised."""
        if self._weights is None:
            layers = [
                layer for layer in (*self.gate_up, *self.down) if isinstance(layer, KernelLinear) and layer.weight is not None
            ]
            if len(layers) < 2 * len(self.down) or len({layer.weight_format for layer in layers}) > 1:
                return None
            count = len(self.down)
            array = PackedWeight * count
            both = [packed_weight(layer) for layer in layers]
            self._weights = layers[0].weight_format, array(*both[:count]), array(*both[count:])
        return self._weights


def pack_experts(module: nn.Module, pack: Callable[..., PackedLinear], kernels: CpuKernels) -> KernelExperts | None:
    """The experts of a module of transformers, packed one after the other; its weights are dropped. None, and the module is as it
    was, if it is another one, or if the kernels would not multiply its weights."""
    shape, activation = ExpertsShape.of(module), activation_of(module)
    if shape is None or activation is None or _kind_of(activation) is None or not computes_the_same(module, activation):
        return None
    # Without bfloat16 instructions the kernels round less than transformers does: in bfloat16, tokens would go to other experts.
    if module.get_parameter("down_proj").dtype == torch.bfloat16 and kernels.linear_method == "fp32":
        return None
    is_transposed = ExpertsShape.is_transposed(module)
    packed: list[list[nn.Module]] = []
    for name in ("gate_up_proj", "down_proj"):
        weights, biases = module.get_parameter(name).data, getattr(module, f"{name}_bias", None)
        layers: list[nn.Module] = []
        for number, weight in enumerate(weights):
            layers.append(pack(_linear(weight.T if is_transposed else weight, None if biases is None else biases.data[number])))
            if not isinstance(layers[-1], KernelLinear):
                return None
        packed.append(layers)
    for name in ("gate_up_proj", "down_proj"):
        module.register_parameter(name, None)
    gate_up, down = packed
    made = KernelExperts(gate_up, down, activation, kernels)
    made._forward_hooks.update(module._forward_hooks)  # ranks add up what theirs compute
    return made


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


def _kind_of(activation: Activation) -> tuple[int, float, float] | None:
    """The kernels' number of an activation with its alpha and limit; None if they do not know it."""
    if isinstance(activation, ClampedSwiglu):
        return 1, activation.alpha, activation.limit
    return (0, 0.0, 0.0) if activation_name(cast(Gated, activation).act_fn) == "silu" else None
