"""Decoder layers that follow each other, computed all at once in the call of the first.

With few rows a layer computes for some hundred microseconds, and getting from one to the next through Python takes a tenth of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from triptych_engine.runner.cpu_attention import CpuAttention
from triptych_engine.runner.layer_kernel import LayerKernel, RotaryTables, compute_layers


@dataclass(frozen=True)
class LayerCall:
    """What a model called a layer with, and what it got."""

    layer: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    @property
    def hidden_states(self) -> torch.Tensor:
        """[1, num_tokens, hidden_size]"""
        return self.args[0] if self.args else self.kwargs["hidden_states"]

    @property
    def position_embeddings(self) -> Any:
        return self.kwargs.get("position_embeddings")


class ChainedLayer(Protocol):
    """What a chain needs of a layer; an nn.Module."""

    kernel: LayerKernel | None
    chain: tuple[LayerChain, int] | None


class LayerChain:
    """Layers of one kind and shape.

    Models are not asked whether they do something between two layers. They hand on what a layer returned, that object itself, or
    they are found out: see `forward`.
    """

    def __init__(self, layers: Sequence[nn.Module], kernels: Sequence[LayerKernel], tables: RotaryTables) -> None:
        self._layers, self._kernels, self._tables = layers, kernels, tables
        self._result: torch.Tensor | None = None
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
            return self._result
        if self._result is None:
            return None
        if hidden_states is not self._result or position_embeddings is not self._position_embeddings:
            raise RuntimeError(f"the model changes what goes from layer {place - 1} to layer {place} of a chain")
        return self._result


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
        layers: list[Any] = [call.layer for call in link]
        chain = LayerChain(layers, [layer.kernel for layer in layers], tables) if len(link) > 1 else None
        for place, layer in enumerate(layers):
            if chain is not None:
                layer.chain = chain, place


def _follows(before: LayerCall, call: LayerCall) -> bool:
    kernels = [getattr(one.layer, "kernel", None) for one in (before, call)]
    if kernels[0] is None or kernels[1] is None:
        return False
    return (
        kernels[0].shape == kernels[1].shape
        and call.hidden_states is before.output
        and call.position_embeddings is before.position_embeddings
    )
