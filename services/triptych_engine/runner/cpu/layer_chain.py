"""Decoder layers that follow each other, computed all at once in the call of the first.

With few rows a layer computes for some hundred microseconds, and getting from one to the next through Python takes a tenth of that.
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
    """What a model called a layer with, and what it got."""

    layer: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    #: `num_changes` of the hidden states and of the output, when the layer had been called.
    changes: tuple[int, int] = (0, 0)

    @property
    def hidden_states(self) -> torch.Tensor:
        """[1, num_tokens, hidden_size]"""
        return self.args[0] if self.args else self.kwargs["hidden_states"]

    @property
    def position_embeddings(self) -> Any:
        return self.kwargs.get("position_embeddings")


def num_changes(states: Any) -> int:
    """How often a tensor, or what it is a view of, was changed in place; 0 of what does not count that, as inference tensors."""
    return states._version if isinstance(states, torch.Tensor) and not states.is_inference() else 0


class LayerChain:
    """Layers of one kind and shape.

    Models are not asked whether they do something between two layers. They call one after the other, and hand on what a layer
    returned, that object itself and as it was, or they are found out: see `forward`.
    """

    def __init__(self, layers: Sequence[nn.Module], kernels: Sequence[LayerKernel], tables: RotaryTables) -> None:
        self._layers, self._kernels, self._tables = layers, kernels, tables
        self._result: torch.Tensor | None = None  # until it was handed to all
        self._num_changes, self._next = 0, 0
        self._position_embeddings: Any = None

    def forward(
        self, place: int, backend: CpuAttention, hidden_states: torch.Tensor, position_embeddings: Any
    ) -> torch.Tensor | None:
        """What the layer at this place returns; None when each layer is to be computed by itself this time.

        Args:
            hidden_states: [1, num_tokens, hidden_size] fp32.

        Raises:
            RuntimeError: the model does something between these layers that it did not do when it was loaded.
        """
        if place == 0:
            self._result = None
            if any(layer._forward_hooks or layer._forward_pre_hooks for layer in self._layers):
                return None  # somebody wants to see, or to change, what goes in and out
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
    """Chain those that follow each other and are one kernel each.

    Args:
        calls: of all layers of a model, in order.
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
