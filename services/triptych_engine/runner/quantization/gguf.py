"""Reads the language model of a GGUF file, tensor by tensor. No tensor is dequantised as a whole, except for small ones.

transformers' own loader would first dequantise everything.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from triptych.errors import StartupError, UnsupportedModelError
from triptych_common.model.gguf import GgufTensor, read_gguf_header

from triptych_engine.runner.quantization.formats import QuantizedRows
from triptych_engine.runner.quantization.gguf_blocks import BLOCK_TYPES
from triptych_engine.runner.quantization.gguf_names import ARCHITECTURES, ROPE_FACTORS, row_order, tensor_names
from triptych_engine.runner.quantization.tensor import QuantizedModules, QuantizedTensor

_PLAIN_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def load_gguf(file: Path, cls: type[PreTrainedModel], config: PretrainedConfig, modules: QuantizedModules) -> PreTrainedModel:
    """A model in float32 whose quantised layers are made by `modules`.

    Raises:
        UnsupportedModelError: a tensor has a type that is not supported, or is of an unknown kind.
        StartupError: the file is damaged, or lacks tensors of the model.
    """
    config._attn_implementation = "eager"
    with init_empty_weights(include_buffers=False):
        model = cls(config)
    with _Reader(file, model) as reader:
        reader.load(model, modules)
    return model.eval()


class _Reader:
    """The tensors of a file by the names of the model's parameters."""

    def __init__(self, file: Path, model: PreTrainedModel) -> None:
        self._file, self._header = file, read_gguf_header(file)
        with file.open("rb") as stream:
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._config, architecture = model.config, self._header.architecture
        if self._config.model_type not in ARCHITECTURES.get(architecture, ()):
            known = ", ".join(ARCHITECTURES)
            raise UnsupportedModelError(f"{file} is of the architecture {architecture!r}; GGUF files are served of {known}")
        parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        names = tensor_names(architecture, self._config.num_hidden_layers, parameters)
        tensors = self._header.tensors
        self._tensors = {parameter: tensors[name] for parameter, name in names.items() if name in tensors}
        unknown = sorted(set(tensors) - set(names.values()) - {ROPE_FACTORS})
        if unknown:
            raise UnsupportedModelError(f"{file} has tensors that {type(model).__name__} does not know, e.g. {unknown[0]}")

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        del self._bytes
        self._map.close()

    def load(self, model: PreTrainedModel, modules: QuantizedModules) -> None:
        embedding = model.get_input_embeddings()
        for name, module in list(model.named_modules()):
            weight = self._tensors.get(f"{name}.weight")
            if weight is None or weight.type in _PLAIN_TYPES:
                continue
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, self._module(f"{name}.weight", module, modules))
        for name, parameter in list(model.named_parameters()):
            if parameter.is_meta and name in self._tensors:
                self._set(model, name, self._plain(name, tuple(parameter.shape)))
        self._tie(model, embedding, modules)
        self._scale_rope(model)
        missing = sorted(name for name, parameter in model.named_parameters() if parameter.is_meta)
        if missing:
            raise StartupError(f"{self._file} lacks {len(missing)} weights of the model, e.g. {missing[0]}; fetch it again")

    def _module(self, name: str, module: nn.Module, modules: QuantizedModules) -> nn.Module:
        """The module that takes the place of one with a quantised weight."""
        if isinstance(module, nn.Embedding):
            scale = getattr(module, "embed_scale", 1.0)
            return modules.embedding(self._quantized(name, tuple(module.weight.shape)), float(scale))
        tensor = self._tensors[name]
        if type(module) is not nn.Linear:
            kind = type(module).__name__
            raise UnsupportedModelError(f"tensor {tensor.name} is {tensor.type}, which is not supported for the weights of {kind}")
        bias = name.removesuffix("weight") + "bias"
        added = self._plain(bias, (module.out_features,)) if bias in self._tensors else None
        return modules.linear(self._quantized(name, (module.out_features, module.in_features)), added)

    def _quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedTensor:
        tensor = self._checked(name, shape)
        kind = BLOCK_TYPES.get(tensor.type)
        if kind is None:
            known = ", ".join([*BLOCK_TYPES, *_PLAIN_TYPES])
            raise UnsupportedModelError(f"tensor {tensor.name} of {self._file} is {tensor.type}; supported are {known}")
        raw = self._raw(tensor).reshape(shape[0], -1)
        order = row_order(self._header.architecture, tensor.name, self._config, shape[0])

        def read(begin: int, end: int) -> QuantizedRows:
            rows = raw[begin:end].copy() if order is None else raw[order[begin:end]]
            return kind.rows(torch.from_numpy(rows))

        return QuantizedTensor(kind.format, shape[0], shape[1], read)

    def _plain(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor that is not quantised, as float32."""
        tensor = self._checked(name, shape)
        dtype = _PLAIN_TYPES.get(tensor.type)
        if dtype is None:
            raise UnsupportedModelError(f"tensor {tensor.name} of {self._file} is {tensor.type}, which is not supported here")
        values = torch.from_numpy(self._raw(tensor).copy()).view(dtype).float().view(shape)
        order = row_order(self._header.architecture, tensor.name, self._config, shape[0])
        return values if order is None else values[torch.from_numpy(order)]

    def _checked(self, name: str, shape: tuple[int, ...]) -> GgufTensor:
        tensor = self._tensors[name]
        if tensor.shape != shape:
            why = f"tensor {tensor.name} has the shape {list(tensor.shape)}, not {list(shape)}"
            raise StartupError(f"the weights in {self._file} do not fit its configuration: {why}")
        return tensor

    def _raw(self, tensor: GgufTensor) -> np.ndarray:
        return self._bytes[tensor.offset : tensor.offset + tensor.num_bytes]

    def _tie(self, model: PreTrainedModel, original: nn.Module, modules: QuantizedModules) -> None:
        """Let the output head share the embedding's weight, if the file has only one of them."""
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        if head is None or f"{_name_of(model, head)}.weight" in self._tensors:
            return
        if embedding is not original:
            model.set_output_embeddings(modules.tied_linear(embedding))
        else:
            head.weight = embedding.weight

    def _scale_rope(self, model: PreTrainedModel) -> None:
        tensor = self._header.tensors.get(ROPE_FACTORS)
        if tensor is None:
            return
        factors = torch.from_numpy(self._raw(tensor).copy()).view(torch.float32)
        for module in model.modules():
            frequencies = getattr(module, "inv_freq", None)
            if frequencies is None:
                continue
            if frequencies.shape != factors.shape:
                raise UnsupportedModelError(f"tensor {tensor.name} has {len(factors)} factors for {len(frequencies)} frequencies")
            module.inv_freq = frequencies / factors
            module.original_inv_freq = module.inv_freq

    @staticmethod
    def _set(model: PreTrainedModel, name: str, value: torch.Tensor) -> None:
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, nn.Parameter(value, requires_grad=False))


def _name_of(model: nn.Module, wanted: nn.Module) -> str:
    return next(name for name, module in model.named_modules() if module is wanted)
