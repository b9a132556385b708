"""Experts of a mixture as modules: each is two linear layers, and computes the tokens that are routed to it.

transformers holds the weights of all experts of a layer in two parameters, which no packed or quantised format fits. The module
here takes its place. It must compute what the family's own module does, so both are compared with small random weights first.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import nn

from triptych_engine.runner.quantization.tensor import QuantizedTensor


class Activation(Protocol):
    """Joins gate and up."""

    #: Whether they take turns, output by output. Else all of gate comes first.
    is_interleaved: ClassVar[bool]

    def __call__(self, both: torch.Tensor, /) -> torch.Tensor:
        """[n, 2 * inner] -> [n, inner]."""
        ...


#: Sizes of the modules that are compared: experts, hidden, inner; tokens, and experts of a token.
_TRIAL_EXPERTS, _TRIAL_HIDDEN, _TRIAL_INNER, _TRIAL_TOKENS, _TRIAL_TOP_K = 4, 64, 32, 6, 2
_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The weights of one expert that are not in memory yet."""

    #: [inner, hidden] of gate and up, or [2 * inner, hidden] of both.
    gate_up: tuple[QuantizedTensor, ...]
    #: [hidden, inner].
    down: QuantizedTensor
    #: [2 * inner] and [hidden] float32, or None.
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ExpertsShape:
    """Sizes of the experts of a layer."""

    num_experts: int
    hidden: int
    inner: int

    @classmethod
    def of(cls, module: nn.Module) -> ExpertsShape | None:
        """The sizes of a module of transformers with the weights of several experts; None if it is none."""
        both, down = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
        if not isinstance(both, nn.Parameter) or not isinstance(down, nn.Parameter) or both.dim() != 3 or down.dim() != 3:
            return None
        num_experts, first, second = down.shape
        return cls(num_experts, second, first) if cls.is_transposed(module) else cls(num_experts, first, second)

    @staticmethod
    def is_transposed(module: nn.Module) -> bool:
        """Whether weights are [experts, in, out]; else they are [experts, out, in]."""
        both, down = module.get_parameter("gate_up_proj"), module.get_parameter("down_proj")
        return both.shape[2] == 2 * down.shape[1]


class ExpertModules(nn.Module):
    """Computes what the experts of a layer do.

    Args:
        gate_up, down: linear layers of each expert.
        activation: joins gate and up.
    """

    def __init__(self, gate_up: Sequence[nn.Module], down: Sequence[nn.Module], activation: Activation) -> None:
        super().__init__()
        self.gate_up, self.down, self._activation = nn.ModuleList(gate_up), nn.ModuleList(down), activation

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        """The weighted sum over each token's experts, in the order of the experts.

        Args:
            hidden_states: [num_tokens, hidden] float32.
            top_k_index: [num_tokens, k] int64, experts of each token.
            top_k_weights: [num_tokens, k].
        """
        out, chosen = torch.zeros_like(hidden_states), top_k_index.flatten()
        order = chosen.argsort(stable=True)
        tokens, weights = order // top_k_index.shape[1], top_k_weights.flatten()[order, None]
        begin = 0
        for expert, count in enumerate(chosen.bincount(minlength=len(self.down)).tolist()):
            if count:
                some = slice(begin, begin + count)
                computed = self.down[expert](self._activation(self.gate_up[expert](hidden_states[tokens[some]])))
                out.index_add_(0, tokens[some], (computed * weights[some]).to(out.dtype))
                begin += count
        return out


def activation_of(module: nn.Module) -> Activation | None:
    """How a family's experts join gate and up; None if that is not known."""
    alpha, limit, act_fn = (getattr(module, name, None) for name in ("alpha", "limit", "act_fn"))
    if isinstance(alpha, (int, float)) and isinstance(limit, (int, float)):
        return ClampedSwiglu(alpha, limit)
    return None if act_fn is None else Gated(act_fn)


@dataclass(frozen=True)
class ClampedSwiglu:
    """gpt-oss: gate and up are interleaved."""

    alpha: float
    limit: float
    is_interleaved: ClassVar[bool] = True

    def __call__(self, both: torch.Tensor) -> torch.Tensor:
        gate, up = both[..., ::2].clamp(max=self.limit), both[..., 1::2].clamp(-self.limit, self.limit)
        return (up + 1) * gate * torch.sigmoid(gate * self.alpha)


@dataclass(frozen=True)
class Gated:
    """Most families: first all of gate, then all of up."""

    act_fn: Callable[[torch.Tensor], torch.Tensor]
    is_interleaved: ClassVar[bool] = False

    def __call__(self, both: torch.Tensor) -> torch.Tensor:
        gate, up = both.chunk(2, -1)
        return self.act_fn(gate) * up


@torch.inference_mode()
def computes_the_same(module: nn.Module, activation: Activation) -> bool:
    """Whether `ExpertModules` computes what a module of transformers does, with small random weights, small and large inputs."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    trial, hidden, inner = copy.copy(module), _TRIAL_HIDDEN, _TRIAL_INNER
    parameters = {
        "gate_up_proj": random(_TRIAL_EXPERTS, 2 * inner, hidden) * hidden**-0.5,
        "down_proj": random(_TRIAL_EXPERTS, hidden, inner) * inner**-0.5,
        "gate_up_proj_bias": random(_TRIAL_EXPERTS, 2 * inner),
        "down_proj_bias": random(_TRIAL_EXPERTS, hidden),
    }
    parameters = {name: parameters[name] for name, _ in module.named_parameters() if name in parameters}
    experts = ExpertModules(_linears(parameters, "gate_up_proj"), _linears(parameters, "down_proj"), activation)
    if ExpertsShape.is_transposed(module):
        parameters |= {name: parameters[name].transpose(1, 2).contiguous() for name in ("gate_up_proj", "down_proj")}
    trial._parameters = {name: nn.Parameter(value, requires_grad=False) for name, value in parameters.items()}
    trial.num_experts = _TRIAL_EXPERTS  # type: ignore[assignment]
    trial._forward_hooks = OrderedDict()  # ranks add up what theirs compute
    index = torch.stack([torch.randperm(_TRIAL_EXPERTS, generator=generator)[:_TRIAL_TOP_K] for _ in range(_TRIAL_TOKENS)])
    x, weights = random(_TRIAL_TOKENS, hidden), torch.rand(_TRIAL_TOKENS, _TRIAL_TOP_K, generator=generator)
    try:
        pairs = [(trial(scale * x, index, weights), experts(scale * x, index, weights)) for scale in (1, 30)]
        return all(torch.allclose(own, got, _TOLERANCE, _TOLERANCE * own.abs().max().item()) for own, got in pairs)
    except Exception:  # the family's own code, which may want other parameters or arguments, or return something else
        return False


def _linears(parameters: dict[str, torch.Tensor], name: str) -> list[nn.Module]:
    layers: list[nn.Module] = []
    biases = parameters.get(f"{name}_bias")
    for number, weight in enumerate(parameters[name]):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=biases is not None)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        if biases is not None:
            layer.bias = nn.Parameter(biases[number], requires_grad=False)
        layers.append(layer)
    return layers
