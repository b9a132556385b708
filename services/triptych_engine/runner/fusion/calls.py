"""What a model's modules are called with, and what they return: from this, its structure is recognised."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from triptych_engine.runner.attention.paged import attending


@dataclass(frozen=True)
class ModuleCall:
    """A call of a module in a model's forward pass."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: The first argument: of decoder layers the hidden states, [1, num_tokens, hidden_size].
    input: Any
    output: Any
    #: `num_changes` of the input and of the output, just after the call.
    changes: tuple[int, int]
    #: The calls of the attention since a recorded module last began or ended: of a decoder layer its own.
    attention: tuple[AttentionCall, ...]

    @property
    def position_embeddings(self) -> Any:
        """What a layer gets of the rotary embeddings."""
        return self.kwargs.get("position_embeddings")

    def hands_on_to(self, call: ModuleCall) -> bool:
        """Whether the other call gets this one's result, unchanged."""
        return is_same_tensor(self.output, call.input) and self.changes[1] == call.changes[0]


def is_same_tensor(one: Any, other: Any) -> bool:
    """Whether two tensors are the same part of the same memory, while neither has been freed."""
    return (
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and (one.data_ptr(), one.shape, one.stride()) == (other.data_ptr(), other.shape, other.stride())
    )


def num_changes(states: Any) -> int:
    """How often a tensor, or the base of a view, was changed in place; 0 if this is not counted, as for inference tensors."""
    return states._version if isinstance(states, torch.Tensor) and not states.is_inference() else 0


def recorded_calls(
    model: nn.Module, modules: Iterable[nn.Module], token_ids: torch.Tensor, position_ids: torch.Tensor
) -> tuple[list[ModuleCall], Any]:
    """The calls of modules in a forward pass, in the order of their ends, and its result.

    Args:
        token_ids: [num_tokens]
        position_ids: in the model's form.
    """
    calls: list[ModuleCall] = []
    recorder = AttentionRecorder()

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = next(iter([*args, *kwargs.values()]), None)
        attention, recorder.calls = tuple(recorder.calls), []
        calls.append(ModuleCall(module, args, kwargs, given, output, (num_changes(given), num_changes(output)), attention))

    def forget(module: nn.Module, args: tuple[Any, ...]) -> None:
        recorder.calls = []  # of layers that are not recorded

    modules = list(modules)
    hooks = [module.register_forward_pre_hook(forget) for module in modules]
    hooks += [module.register_forward_hook(note, with_kwargs=True) for module in modules]
    try:
        with torch.no_grad(), attending(recorder):  # type: ignore[arg-type]  # in inference mode, changes are not counted
            result = model(input_ids=token_ids[None], position_ids=position_ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return calls, result


@dataclass(frozen=True)
class AttentionCall:
    """What a layer passes to its attention. query, key, value: [num_tokens, heads, head_dim]."""

    layer: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    options: dict[str, Any]


class AttentionRecorder:
    """Replaces an attention backend: records its calls, and returns each token's own value."""

    name = "recorder"

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def forward(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
        self.calls.append(AttentionCall(layer, query.clone(), key.clone(), value.clone(), options))
        return value.repeat_interleave(query.shape[1] // value.shape[1], 1).contiguous()

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Nothing: the keys of indexers (attention/indexers.py) are not the layer's own."""
