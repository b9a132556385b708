"""Muon for small networks on a CPU. torch.optim.Muon computes in bfloat16, which is several times slower here."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalized steps (Jordan 2024), as large as AdamW's (Liu et al. 2025). Only for matrices."""

    def __init__(self, groups: list[dict[str, Any]], momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(groups, {"momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for parameters in by_shape.values():
                self._step_alike(parameters, group)

    def _step_alike(self, parameters: list[torch.nn.Parameter], group: dict[str, Any]) -> None:
        directions = orthogonalised(torch.stack([self._momentum(p, group["momentum"]) for p in parameters]))
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(direction, alpha=-0.2 * group["lr"] * max(parameter.shape) ** 0.5)

    def _momentum(self, parameter: torch.nn.Parameter, momentum: float) -> torch.Tensor:
        """Nesterov momentum."""
        state = self.state[parameter]
        if not state:
            state["mean"] = torch.zeros_like(parameter)
        state["mean"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(state["mean"], momentum)


def orthogonalised(matrices: torch.Tensor) -> torch.Tensor:
    """Matrices [count, rows, columns] with singular values near 1, computed by Newton-Schulz iterations."""
    wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    result = wide / (wide.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = result @ result.mT
        result = a * result + (b * gram + c * gram @ gram) @ result
    return result if matrices.shape[1] <= matrices.shape[2] else result.mT
