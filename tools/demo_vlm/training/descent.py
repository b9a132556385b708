"""Optimizers: Muon for the matrices between hidden states, AdamW for the rest, one schedule for both."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from .muon import Muon

_WEIGHT_DECAY = 0.02
_MOST_WARMUP_STEPS = 50


class Descent:
    """Linear warm-up, then half a cosine down to a fiftieth of the rate, over `num_steps` steps.

    Args:
        hidden: modules whose linear layers lie between hidden states -> learning rate.
        others: modules that AdamW trains as a whole -> learning rate.
    """

    def __init__(self, hidden: dict[nn.Module, float], others: dict[nn.Module, float], num_steps: int) -> None:
        self.num_steps = num_steps
        matrices = [_group(_linear_weights(module), rate) for module, rate in hidden.items()]
        rest = [_group(_not_linear_weights(module), rate) for module, rate in hidden.items()]
        rest += [_group(list(module.parameters()), rate) for module, rate in others.items()]
        self._optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=_WEIGHT_DECAY)]
        if matrices:
            self._optimizers.append(Muon(matrices, weight_decay=_WEIGHT_DECAY))
        self._num_warmup_steps = min(_MOST_WARMUP_STEPS, max(1, num_steps // 20))

    def step(self, loss: torch.Tensor, step: int) -> None:
        """Perform one optimizer step, with the given step number."""
        done = max(0, step - self._num_warmup_steps) / max(1, self.num_steps - self._num_warmup_steps)
        share = min((step + 1) / self._num_warmup_steps, 0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["rate"] * share
                torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
            optimizer.step()

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self._optimizers]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        for optimizer, each in zip(self._optimizers, state, strict=True):
            optimizer.load_state_dict(each)


def _group(parameters: list[nn.Parameter], rate: float) -> dict[str, Any]:
    return {"params": [p for p in parameters if p.requires_grad], "rate": rate, "lr": rate}


def _linear_weights(module: nn.Module) -> list[nn.Parameter]:
    return [part.weight for part in module.modules() if isinstance(part, nn.Linear)]


def _not_linear_weights(module: nn.Module) -> list[nn.Parameter]:
    weights = {id(weight) for weight in _linear_weights(module)}
    return [p for p in module.parameters() if id(p) not in weights]
