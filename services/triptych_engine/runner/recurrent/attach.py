"""Lets the recurrent modules of a model compute ragged batches.

transformers' modules compute what comes before and after the recurrences, and call these by functions of their own file. Their
forward pass is kept, and given other functions by the same names.
"""

from __future__ import annotations

import inspect
import types
from functools import partial

from torch import nn

from triptych_engine.runner.recurrent.layers import RecurrentLayers

#: Function of transformers' files -> the method of RecurrentLayers in its place.
_FUNCTIONS = {
    "causal_conv1d_fn": "conv",
    "torch_chunk_gated_delta_rule": "delta_rule",
    "chunk_kimi_delta_attention": "delta_rule",
    "mamba2_chunk_scan": "scan",
}
#: What a forward pass calls to keep a state -> the methods of which one must compute it.
_KEEPING = {"update_conv_state": {"conv"}, "update_recurrent_state": {"delta_rule", "scan"}}


class UnknownStateError(Exception):
    """A module keeps a state of a kind that is not known. Its argument is the class."""


def attach_recurrent_layers(model: nn.Module) -> RecurrentLayers | None:
    """Let the recurrent modules of a model use the layers that are returned; None if there are no such modules.

    Raises:
        UnknownStateError: as it says.
    """
    layers = RecurrentLayers()
    for module in model.modules():
        forward = inspect.unwrap(type(module).forward)
        if not isinstance(forward, types.FunctionType) or not hasattr(module, "layer_idx"):
            continue
        called = set(forward.__code__.co_names)
        names = _FUNCTIONS.keys() & called
        computed = {_FUNCTIONS[name] for name in names}
        if any(name in called and not computed & methods for name, methods in _KEEPING.items()):
            raise UnknownStateError(type(module).__name__)
        if not names:
            continue
        number = len(layers.layer_of)
        layers.layer_of.append(int(module.layer_idx))  # type: ignore[arg-type]
        functions = {name: partial(getattr(layers, _FUNCTIONS[name]), number) for name in names}
        own = types.FunctionType(
            forward.__code__, {**forward.__globals__, **functions}, forward.__name__, forward.__defaults__, forward.__closure__
        )
        own.__kwdefaults__ = forward.__kwdefaults__
        module.forward = types.MethodType(own, module)
        module.recurrent = (layers, number)  # type: ignore[assignment]  # for what replaces the module
    return layers if layers.layer_of else None
