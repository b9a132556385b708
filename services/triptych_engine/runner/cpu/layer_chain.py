"""Consecutive decoder layers that are all computed in the call of the first one.

With few rows, a layer computes for about a hundred microseconds. Going from one layer to the next through Python takes a tenth of
that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.layer_kernel import LayerKernel, RotaryTables, compute_layers


@dataclass(frozen=True)
class LayerCall:
    """A model's call of a layer: the arguments and the result."""

    layer: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    #: `num_changes` of the hidden states and of the output, just after the call.
    changes: tuple[int, int] = (0, 0)

    @property
    def hidden_states(self) -> torch.Tensor:
        """[1, num_tokens, hidden_size]"""
        return self.args[0] if self.args else self.kwargs["hidden_states"]

    @property
    def position_embeddings(self) -> Any:
        return self.kwargs.get("position_embeddings")


def num_changes(states: Any) -> int:
    """How often a tensor, or the base of a view, was changed in place; 0 if this is not counted, as for inference tensors."""
    return states._version if isinstance(states, torch.Tensor) and not states.is_inference() else 0


class LayerChain:
    """Consecutive layers of the same kind and shape.

    The model must do nothing between two of these layers: it must pass the result of a layer to the next one, as the same object
    and unchanged. `forward` checks this.
    """

    def __init__(self, layers: Sequence[nn.Module], kernels: Sequence[LayerKernel], tables: RotaryTables) -> None:
        self._layers, self._kernels, self._tables = layers, kernels, tables
        self._result: torch.Tensor | None = None  # until all layers have returned it
        self._num_changes, self._next = 0, 0
        self._position_embeddings: Any = None

    def forward(
        self, place: int, backend: CpuAttention, hidden_states: torch.Tensor, position_embeddings: Any
    ) -> torch.Tensor | None:
        """The result of the layer at this place; None if each layer must be computed on its own this time.

        Args:
            hidden_states: [1, num_tokens, hidden_size] fp32.

        Raises:
            RuntimeError: the model does something between these layers that it did not do when it was loaded.
        """
        if place == 0:
            self._result = None
            if any(layer._forward_hooks or layer._forward_pre_hooks for layer in self._layers):
                return None  # a hook may read or change inputs and outputs
            self._position_embeddings = position_embeddings
            tables = self._tables.dense(position_embeddings)
            self._result = compute_layers(self._kernels, backend, hidden_states[0].contiguous(), *tables)[None]
            self._num_changes, self._next = num_changes(self._result), 1
            return self._result
        result = self._result
        if result is None:
            return None
        is_unchanged = hidden_states is result and num_changes(result) == self._num_changes
        if place != self._next or not is_unchanged or position_embeddings is not self._position_embeddings:
            raise RuntimeError(f"the model changes what goes from layer {self._next - 1} to layer {self._next} of a chain")
        self._next += 1
        if self._next == len(self._layers):
            self._result = self._position_embeddings = None
        return result


def chain_layers(calls: Sequence[LayerCall], tables: RotaryTables) -> None:
    """Chain consecutive layers that are a single kernel each.

    Args:
        calls: calls of all layers of a model, in order.
    """
    if len({call.layer for call in calls}) < len(calls):
        return  # a layer that is called twice has more than one place
    links: list[list[LayerCall]] = []
    for call in calls:
        if links and _follows(links[-1][-1], call):
            links[-1].append(call)
        else:
            links.append([call])
    for link in links:
        if len(link) == 1:
            continue
        layers: list[Any] = [call.layer for call in link]
        chain = LayerChain(layers, [layer.kernel for layer in layers], tables)
        for place, layer in enumerate(layers):
            layer.chain = chain, place


def _follows(before: LayerCall, call: LayerCall) -> bool:
    kernels = [getattr(one.layer, "kernel", None) for one in (before, call)]
    if kernels[0] is None or kernels[1] is None:
        return False
    return (
        kernels[0].shape == kernels[1].shape
        and call.hidden_states is before.output
        and call.changes[0] == before.changes[1]
        and call.position_embeddings is before.position_embeddings
    )
