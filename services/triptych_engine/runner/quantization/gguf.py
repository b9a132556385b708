"""Reads the language model of a GGUF file, tensor by tensor. transformers' own loader would first dequantise everything."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel
from triptych.errors import StartupError, UnsupportedModelError
from triptych_common.model.gguf import ARCHITECTURES, GgufTensor, read_gguf_header

from triptych_engine.runner.quantization.experts import ExpertsShape, ExpertWeights
from triptych_engine.runner.quantization.filling import Fill, empty_model, fill_model
from triptych_engine.runner.quantization.formats import QuantizedRows
from triptych_engine.runner.quantization.gguf_blocks import BLOCK_TYPES
from triptych_engine.runner.quantization.gguf_names import ROPE_FACTORS, row_order, tensor_names
from triptych_engine.runner.quantization.tensor import QuantizedModules, QuantizedTensor

_PLAIN_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def load_gguf(
    file: Path,
    cls: type[PreTrainedModel],
    config: PretrainedConfig,
    modules: QuantizedModules,
    fill: Fill = fill_model,
) -> PreTrainedModel:
    """A model in float32 whose quantised layers are made by `modules`.

    Raises:
        UnsupportedModelError: a tensor has a type that is not supported, or is of an unknown kind.
        StartupError: the file is damaged, or lacks tensors of the model.
    """
    model = empty_model(cls, config)
    with _GgufSource(file, model) as source:
        model = fill(model, source, modules, file)
        _scale_rope(model, source)
    return model


class _GgufSource:
    """The tensors of a file by the names of the model's parameters, see `WeightSource`."""

    def __init__(self, file: Path, model: PreTrainedModel) -> None:
        self._file, self._header, self._config = file, read_gguf_header(file), model.config
        self._architecture = self._header.architecture
        if model.config.model_type not in ARCHITECTURES.get(self._architecture, ()):
            known = ", ".join(ARCHITECTURES)
            raise UnsupportedModelError(f"{file} is of the architecture {self._architecture!r}; GGUF files are served of {known}")
        parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        experts = [name for name, module in model.named_modules() if ExpertsShape.of(module) is not None]
        parameters += [f"{name}.{part}.weight" for name in experts for part in ("gate_proj", "up_proj", "down_proj")]
        names = tensor_names(self._architecture, model.config.num_hidden_layers, parameters)
        tensors = self._header.tensors
        self._tensors = {parameter: tensors[name] for parameter, name in names.items() if name in tensors}
        unknown = sorted(set(tensors) - set(names.values()) - {ROPE_FACTORS})
        if unknown:
            raise UnsupportedModelError(f"{file} has tensors that {type(model).__name__} does not know, e.g. {unknown[0]}")
        with file.open("rb") as stream:
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self._bytes = np.frombuffer(self._map, np.uint8)

    def __enter__(self) -> _GgufSource:
        return self

    def __exit__(self, *_: object) -> None:
        del self._bytes  # the mapping ends with the last tensor that was read from it

    @property
    def largest_block(self) -> int:
        kinds = (BLOCK_TYPES.get(tensor.type) for tensor in self._tensors.values())
        return max((kind.format.block for kind in kinds if kind is not None), default=1)

    def is_tied(self, config: PretrainedConfig) -> bool:
        return True

    def quantized(self, name: str, shape: tuple[int, int]) -> QuantizedTensor | None:
        tensor = self._checked(name, shape)
        if tensor is None or tensor.type in _PLAIN_TYPES:
            return None
        order = row_order(self._architecture, tensor.name, self._config, shape[0])
        return self._quantized(tensor, self._raw(tensor).reshape(shape[0], -1), shape, order)

    def experts(self, name: str, shape: ExpertsShape) -> Iterator[ExpertWeights] | None:
        """Each of the three tensors has the weights of all experts."""
        sizes = {
            "gate_proj": (shape.inner, shape.hidden),
            "up_proj": (shape.inner, shape.hidden),
            "down_proj": (shape.hidden, shape.inner),
        }
        tensors = {part: self._checked(f"{name}.{part}.weight", (shape.num_experts, *size)) for part, size in sizes.items()}
        if None in tensors.values():
            return None

        def expert(part: str, number: int) -> QuantizedTensor:
            tensor = tensors[part]
            assert tensor is not None  # noqa: S101
            return self._quantized(tensor, self._raw(tensor).reshape(shape.num_experts, sizes[part][0], -1)[number], sizes[part])

        return (
            ExpertWeights((expert("gate_proj", number), expert("up_proj", number)), expert("down_proj", number))
            for number in range(shape.num_experts)
        )

    def _quantized(
        self, tensor: GgufTensor, raw: np.ndarray, shape: tuple[int, int], order: np.ndarray | None = None
    ) -> QuantizedTensor:
        """raw: [rows, bytes of a row]; order: which of them is each row of the weight."""
        kind = BLOCK_TYPES.get(tensor.type)
        if kind is None:
            known = ", ".join(BLOCK_TYPES if len(tensor.shape) > 2 else [*BLOCK_TYPES, *_PLAIN_TYPES])
            raise UnsupportedModelError(f"tensor {tensor.name} of {self._file} is {tensor.type}; supported are {known}")

        def read(begin: int, end: int) -> QuantizedRows:
            rows = raw[begin:end].copy() if order is None else raw[order[begin:end]]
            return kind.rows(torch.from_numpy(rows))

        return QuantizedTensor(kind.format, *shape, read)

    def plain(self, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
        tensor = self._checked(name, shape)
        if tensor is None:
            return None
        dtype = _PLAIN_TYPES.get(tensor.type)
        if dtype is None:
            raise UnsupportedModelError(f"tensor {tensor.name} of {self._file} is {tensor.type}, which is not supported here")
        values = torch.from_numpy(self._raw(tensor).copy()).view(dtype).float().view(shape)
        order = row_order(self._architecture, tensor.name, self._config, shape[0])
        return values if order is None else values[torch.from_numpy(order)]

    def rope_factors(self) -> torch.Tensor | None:
        """Divisors of the frequencies of rotary embeddings, float32."""
        tensor = self._header.tensors.get(ROPE_FACTORS)
        if tensor is not None and tensor.type != "F32":
            raise UnsupportedModelError(f"tensor {tensor.name} of {self._file} is {tensor.type}; it must be F32")
        return None if tensor is None else torch.from_numpy(self._raw(tensor).copy()).view(torch.float32)

    def _checked(self, name: str, shape: tuple[int, ...]) -> GgufTensor | None:
        tensor = self._tensors.get(name)
        if tensor is not None and tensor.shape != shape:
            why = f"tensor {tensor.name} has the shape {list(tensor.shape)}, not {list(shape)}"
            raise StartupError(f"the weights in {self._file} do not fit its configuration: {why}")
        return tensor

    def _raw(self, tensor: GgufTensor) -> np.ndarray:
        return self._bytes[tensor.offset : tensor.offset + tensor.num_bytes]


def _scale_rope(model: PreTrainedModel, source: _GgufSource) -> None:
    factors = source.rope_factors()
    if factors is None:
        return
    for module in model.modules():
        frequencies = getattr(module, "inv_freq", None)
        if frequencies is None:
            continue
        if frequencies.shape != factors.shape:
            raise UnsupportedModelError(f"tensor {ROPE_FACTORS} has {len(factors)} factors for {len(frequencies)} frequencies")
        module.inv_freq = frequencies / factors
        module.original_inv_freq = module.inv_freq
