"""Fills a model whose parameters have no memory yet from a checkpoint with quantised weights, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from triptych.errors import StartupError, UnsupportedModelError

from triptych_engine.runner.quantization.experts import (
    ExpertsShape,
    ExpertWeights,
    activation_of,
    computes_the_same,
)
from triptych_engine.runner.quantization.tensor import QuantizedModules, QuantizedTensor

#: Quantised weights of other modules than linear layers are dequantised if they have no more than so many.
_SMALL = 1 << 21


#: Fills a model in another way than `fill_model`, and returns it: arguments as of that.
Fill = Callable[[PreTrainedModel, "WeightSource", QuantizedModules, Path], PreTrainedModel]


class WeightSource(Protocol):
    """The tensors of a checkpoint, by the names of the model's parameters."""

    def quantized(self, name: str, shape: tuple[int, int]) -> QuantizedTensor | None:
        """A weight [out, in]; None if it is not quantised. name: of the parameter."""

    def experts(self, name: str, shape: ExpertsShape) -> Iterator[ExpertWeights] | None:
        """The weights of a layer's experts, read one by one; None if they are not quantised. name: of the module."""

    def plain(self, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
        """A parameter that is not quantised, as float32; None if there is none."""

    @property
    def largest_block(self) -> int:
        """Columns of a quantised weight that cannot be had apart."""
        ...

    def is_tied(self, config: PretrainedConfig) -> bool:
        """Whether an output head that has no weight shares the embedding's."""


def empty_model(cls: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    """A model whose parameters are on the meta device; its buffers are computed."""
    config._attn_implementation = "eager"
    with init_empty_weights(include_buffers=False):
        return cls(config).eval()


def fill_model(model: PreTrainedModel, source: WeightSource, modules: QuantizedModules, path: Path) -> PreTrainedModel:
    """Give each parameter its value, in float32. Layers with quantised weights are replaced by those that `modules` makes. Returns
    the same model.

    Raises:
        UnsupportedModelError: a weight is quantised that cannot be.
        StartupError: the checkpoint lacks parameters of the model.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        weight, made, shape = getattr(module, "weight", None), None, ExpertsShape.of(module)
        if isinstance(weight, torch.Tensor) and weight.dim() == 2:
            made = _quantized_module(name, module, (weight.shape[0], weight.shape[1]), source, modules)
        elif shape is not None:
            made = _quantized_experts(name, module, shape, source, modules)
        if made is not None:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, made)
    for name, parameter in list(model.named_parameters()):
        if parameter.is_meta and (value := source.plain(name, tuple(parameter.shape))) is not None:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, nn.Parameter(value, requires_grad=False))
    saved = set(model.state_dict())
    for name, buffer in model.named_buffers():  # such as the corrections of a router's scores
        if name in saved and (value := source.plain(name, tuple(buffer.shape))) is not None:
            buffer.copy_(value)
    if head is not None and model.get_output_embeddings() is head and head.weight.is_meta and source.is_tied(model.config):
        if model.get_input_embeddings() is embedding:
            head.weight = embedding.weight
        else:
            model.set_output_embeddings(modules.tied_linear(model.get_input_embeddings()))
    missing = sorted(name for name, parameter in model.named_parameters() if parameter.is_meta)
    if missing:
        raise StartupError(f"the checkpoint in {path} lacks {len(missing)} weights, e.g. {missing[0]}; fetch the model again")
    return model


def _quantized_module(
    name: str, module: nn.Module, shape: tuple[int, int], source: WeightSource, modules: QuantizedModules
) -> nn.Module | None:
    """The module that takes the place of one with a quantised weight; None if its weight is not quantised."""
    weight = source.quantized(f"{name}.weight", shape)
    if weight is None:
        return None
    if isinstance(module, nn.Embedding):
        return modules.embedding(weight, float(getattr(module, "embed_scale", 1.0)))
    if type(module) is not nn.Linear and shape[0] * shape[1] <= _SMALL:  # a router
        rows = torch.cat([rows.dequantize() for rows in weight.portions()])
        module.weight = nn.Parameter(rows, requires_grad=False)
        return None
    if type(module) is not nn.Linear:
        raise UnsupportedModelError(
            f"{name}.weight is quantised, which is not supported for the weights of {type(module).__name__}"
        )
    bias = None if module.bias is None else source.plain(f"{name}.bias", shape[:1])
    if bias is None and module.bias is not None:
        raise StartupError(f"the checkpoint lacks 1 weights, e.g. {name}.bias; fetch the model again")
    return modules.linear([weight], bias)


def _quantized_experts(
    name: str, module: nn.Module, shape: ExpertsShape, source: WeightSource, modules: QuantizedModules
) -> nn.Module | None:
    """The module that takes the place of a layer's experts; None if their weights are not quantised."""
    experts, activation = source.experts(name, shape), activation_of(module)
    if experts is None:
        return None
    if activation is None or not computes_the_same(module, activation):
        raise UnsupportedModelError(f"the experts in {name} are quantised, which is not supported for {type(module).__name__}")
    gate_up, down = [], []
    for one in experts:
        if activation.is_interleaved and len(one.gate_up) > 1:
            raise UnsupportedModelError(f"gate and up of the experts in {name} are stored apart, which is not supported here")
        for part, bias in (("gate_up_proj", one.gate_up_bias), ("down_proj", one.down_bias)):
            if hasattr(module, f"{part}_bias") != (bias is not None):
                lacks = "lacks" if bias is None else "has more than is needed:"
                raise StartupError(f"the checkpoint {lacks} {name}.{part}_bias; fetch the model again")
        gate_up.append(modules.linear(one.gate_up, one.gate_up_bias))
        down.append(modules.linear([one.down], one.down_bias))
    return modules.experts(gate_up, down, activation)
