"""Reads checkpoints in safetensors whose weights are quantised, tensor by tensor: GPTQ, AWQ, FP8, MXFP4, compressed-tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PretrainedConfig, PreTrainedModel
from triptych.errors import StartupError, UnsupportedModelError
from triptych_common.model.weights import read_header, weight_files

from triptych_engine.runner.quantization.experts import ExpertsShape, ExpertWeights
from triptych_engine.runner.quantization.filling import Fill, empty_model, fill_model
from triptych_engine.runner.quantization.formats import F4, F8
from triptych_engine.runner.quantization.packed_float import FloatWeight, read_float8
from triptych_engine.runner.quantization.packed_int import PackedWeight, read_awq, read_compressed, read_gptq
from triptych_engine.runner.quantization.packed_mxfp4 import mxfp4_tensor
from triptych_engine.runner.quantization.tensor import QuantizedModules, QuantizedTensor

#: What compressed-tensors' weights are -> their numbers of bits, and its formats, that are read.
_COMPRESSED = {
    "int": ((4, 8), ("pack-quantized", "int-quantized", "naive-quantized")),
    "float": ((8,), ("float-quantized", "naive-quantized")),
}
#: Ends of the names of tensors that a checkpoint may have in addition.
_NEEDLESS = (
    ".rotary_emb.inv_freq",
    "lm_head.weight",
    ".weight_shape",
    ".weight_g_idx",
    ".input_scale",
    ".input_zero_point",
    ".activation_scale",
)
#: Keys of a `quantization_config` that change how a model is computed.
_CHANGES = ("transform_config", "dynamic", "sparsity_config", "kv_cache_scheme")


def quantization_of(config: PretrainedConfig) -> dict[str, Any] | None:
    """The `quantization_config` of a model; None if its weights are not quantised. Older compressed-tensors name it otherwise."""
    names = ("quantization_config", "compression_config")
    parts = (config, config.get_text_config())
    found = next((value for part in parts for name in names if (value := getattr(part, name, None)) is not None), None)
    if found is None:
        return None
    return dict(found) if isinstance(found, Mapping) else dict(found.to_dict())


def check_plain(path: Path) -> None:
    """Refuse weights with scales of their own in a checkpoint whose configuration does not say that they are quantised.

    Raises:
        UnsupportedModelError: they would be taken as they are stored.
    """
    for file in weight_files(path):
        for name, tensor in read_header(file).items():
            if tensor["dtype"].startswith("F8_") or name.endswith(
                (".weight_scale", ".weight_scale_inv", ".weight_packed", ".qweight")
            ):
                why = "its config.json has no quantization_config that says how"
                raise UnsupportedModelError(f"the weights in {path} are quantised (e.g. {name}), and {why}")


def unsupported_quantization(config: PretrainedConfig) -> str | None:
    """Why a model's quantisation is not supported, in one line; None if it is, or if there is none."""
    found = quantization_of(config)
    if found is None:
        return None
    method = found.get("quant_method")
    change = next((key for key in _CHANGES if found.get(key)), None)
    if change is not None:
        return f"its {change} in quantization_config is not supported"
    if method == "gptq":
        return None if found.get("bits") in (4, 8) else f"its GPTQ weights have {found.get('bits')} bits; 4 and 8 are supported"
    if method == "awq":
        version = str(found.get("version", "gemm")).lower()
        if version != "gemm":
            return f"its AWQ weights are packed for {version!r}; 'gemm' is supported"
        return None if found.get("bits") == 4 else f"its AWQ weights have {found.get('bits')} bits; 4 are supported"
    if method == "compressed-tensors":
        return _unsupported_groups(found)
    if method in ("fp8", "mxfp4"):
        return None
    return f"its weights are quantised by {method!r}; supported are gptq, awq, compressed-tensors, fp8, mxfp4, and GGUF files"


def _unsupported_groups(config: Mapping[str, Any]) -> str | None:
    for group in config.get("config_groups", {}).values():
        weights, form = group.get("weights") or {}, group.get("format") or config.get("format")
        bits, formats = _COMPRESSED.get(str(weights.get("type")), ((), ()))
        if weights.get("num_bits") not in bits or form not in formats:
            what = f"{form} with {weights.get('num_bits')} bits of {weights.get('type')}"
            return f"its weights are quantised by compressed-tensors as {what}; 4 and 8 bits of int, and 8 of float, are supported"
    return None


def load_quantized(
    path: Path,
    cls: type[PreTrainedModel],
    config: PretrainedConfig,
    modules: QuantizedModules,
    fill: Fill = fill_model,
) -> PreTrainedModel:
    """A model in float32 whose quantised layers are made by `modules`.

    Raises:
        UnsupportedModelError: a layer is quantised in a way that is not supported.
        StartupError: the checkpoint does not fit its configuration, or lacks weights.
    """
    model = empty_model(cls, config)
    source = _SafetensorsSource(path, quantization_of(config) or {})
    model = fill(model, source, modules, path)
    source.check_all_read(model._keys_to_ignore_on_load_unexpected or ())
    return model


class _SafetensorsSource:
    """The tensors of a checkpoint by the names of the model's parameters, see `WeightSource`."""

    def __init__(self, path: Path, quantization: Mapping[str, Any]) -> None:
        self._path, self._quantization = path, quantization
        self._read_names: set[str] = set()
        self._files = {name: handle for file in weight_files(path) for handle in [_open(file)] for name in _names(handle)}

    @property
    def largest_block(self) -> int:
        return F4.block if self._quantization.get("quant_method") == "mxfp4" else F8.block

    def is_tied(self, config: PretrainedConfig) -> bool:
        return bool(config.tie_word_embeddings)

    def check_all_read(self, needless: Collection[str]) -> None:
        """Raise UnsupportedModelError if the checkpoint has more than was read: it would be computed without that.

        Args:
            needless: patterns of names that the family leaves out.
        """
        left = sorted(name for name in set(self._files) - self._read_names if not name.endswith(_NEEDLESS))
        left = [name for name in left if not any(re.search(pattern, name) for pattern in needless)]
        # AutoGPTQ gives every layer a bias.
        left = [name for name in left if not name.endswith(".bias") or self._files[name].get_tensor(name).any()]
        if left:
            raise UnsupportedModelError(f"{self._path} has {len(left)} tensors that are not understood, e.g. {left[0]}")

    def quantized(self, name: str, shape: tuple[int, int]) -> QuantizedTensor | None:
        layer = name.removesuffix(".weight")
        packed = self._packed(layer)
        if packed is None:
            return None
        if packed.values.shape != shape:
            raise self._misfit(layer, tuple(packed.values.shape), shape)
        return packed.tensor(layer)

    def experts(self, name: str, shape: ExpertsShape) -> Iterator[ExpertWeights] | None:
        if f"{name}.gate_up_proj_blocks" in self._files:
            return self._mxfp4_experts(name, shape)
        if f"{name}.gate_up_proj" in self._files:
            return None
        if not any(key.startswith(f"{name}.0.gate_proj.") for key in self._files):
            why = f"is stored in another way than {name}.0.gate_proj and {name}.gate_up_proj_blocks"
            raise UnsupportedModelError(f"what {self._path} has of {name} {why}, which is not supported")
        if self._packed(f"{name}.0.gate_proj") is None:  # `plain` joins them
            return None
        inwards, outwards = (shape.inner, shape.hidden), (shape.hidden, shape.inner)
        sizes = (("gate_proj", inwards), ("up_proj", inwards), ("down_proj", outwards))

        def expert(number: int) -> ExpertWeights:
            gate, up, down = (self._expert(f"{name}.{number}.{part}", size) for part, size in sizes)
            return ExpertWeights((gate, up), down)

        return map(expert, range(shape.num_experts))

    def plain(self, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
        tensor = self._read(name)
        if tensor is None and len(shape) == 3:
            tensor = self._plain_experts(name, shape[0])
        if tensor is None:
            return None
        if tuple(tensor.shape) != shape:
            raise self._misfit(name, tuple(tensor.shape), shape)
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise UnsupportedModelError(
                f"{name} in {self._path} is {str(tensor.dtype).removeprefix('torch.')}, which is not supported"
            )
        return tensor.float()

    def _plain_experts(self, name: str, num_experts: int) -> torch.Tensor | None:
        """A parameter with the weights of all experts, from those of each; None if they are not stored so."""
        module, _, part = name.rpartition(".")
        parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(part, ())
        names = [[f"{module}.{number}.{one}.weight" for one in parts] for number in range(num_experts)]
        flat = [one for some in names for one in some]
        if not flat or flat[0] not in self._files:
            return None
        if absent := [one for one in flat if one not in self._files]:
            raise UnsupportedModelError(f"{absent[0]} is not in {self._path} as a plain weight; those of other experts are")
        return torch.stack([torch.cat([self._read(one) for one in some]) for some in names])  # type: ignore[misc]

    def _expert(self, layer: str, shape: tuple[int, int]) -> QuantizedTensor:
        weight = self.quantized(f"{layer}.weight", shape)
        if weight is None:
            raise UnsupportedModelError(f"{layer} in {self._path} is not quantised; a layer's experts must all be")
        return weight

    def _mxfp4_experts(self, name: str, shape: ExpertsShape) -> Iterator[ExpertWeights]:
        """As gpt-oss stores them: NAME.gate_up_proj_{blocks,scales,bias} and NAME.down_proj_{blocks,scales,bias} of all experts."""

        def weights(part: str, rows: int, columns: int) -> tuple[list[QuantizedTensor], torch.Tensor | None]:
            blocks, exponents = (f"{name}.{part}_{end}" for end in ("blocks", "scales"))
            sizes = (shape.num_experts, rows, columns // F4.block)
            for tensor, expected in ((blocks, (*sizes, F4.block // 2)), (exponents, sizes)):
                stored = tuple(self._files[tensor].get_slice(tensor).get_shape()) if tensor in self._files else ()
                if stored != expected:
                    raise self._misfit(tensor, stored, expected)
                if self._files[tensor].get_slice(tensor).get_dtype() != "U8":
                    raise UnsupportedModelError(f"{tensor} in {self._path} is not stored in bytes, which is not supported")
            self._read_names.update((blocks, exponents))
            source, scales = self._files[blocks].get_slice(blocks), self._files[exponents].get_tensor(exponents)

            def rows_of(number: int) -> Callable[[int, int], torch.Tensor]:
                return lambda begin, end: source[number, begin:end]

            tensors = [
                mxfp4_tensor(f"expert {number} of {name}.{part}", (rows, columns), rows_of(number), scales[number])
                for number in range(shape.num_experts)
            ]
            bias = f"{name}.{part}_bias"
            return tensors, self.plain(bias, (shape.num_experts, rows)) if bias in self._files else None

        gate_up, gate_up_bias = weights("gate_up_proj", 2 * shape.inner, shape.hidden)
        down, down_bias = weights("down_proj", shape.hidden, shape.inner)
        none = [None] * shape.num_experts
        biases = zip(none if gate_up_bias is None else gate_up_bias, none if down_bias is None else down_bias, strict=True)
        return (ExpertWeights((both,), one, *bias) for both, one, bias in zip(gate_up, down, biases, strict=True))

    def _packed(self, layer: str) -> PackedWeight | FloatWeight | None:
        def read(part: str) -> torch.Tensor | None:
            return self._read(f"{layer}.{part}")

        method = self._quantization["quant_method"]
        if method == "compressed-tensors":
            weights = _weights_of(layer, self._quantization)
            reader: Any = read_float8 if weights is not None and weights["type"] == "float" else read_compressed
            return None if weights is None else reader(read, weights, layer)
        readers: dict[str, Any] = {"gptq": read_gptq, "awq": read_awq, "fp8": read_float8}
        reader = readers.get(method)  # with mxfp4, only experts are quantised
        return None if reader is None else reader(read, self._quantization, layer)

    def _read(self, name: str) -> torch.Tensor | None:
        handle = self._files.get(name)
        self._read_names.add(name)
        return None if handle is None else handle.get_tensor(name)

    def _misfit(self, name: str, stored: tuple[int, ...], expected: tuple[int, ...]) -> StartupError:
        why = f"{name} has the shape {list(stored)}, not {list(expected)}"
        return StartupError(f"the weights in {self._path} do not fit its config.json: {why}")


def _open(file: Path) -> Any:
    return safe_open(file, framework="pt")


def _names(handle: Any) -> list[str]:
    return list(handle.keys())


def _weights_of(layer: str, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How compressed-tensors quantised a layer's weights; None if it did not."""
    if any(_matches(layer, pattern) for pattern in config.get("ignore") or ()):
        return None
    targets = [(target, group) for group in config.get("config_groups", {}).values() for target in group.get("targets", ())]
    targets.sort(key=lambda pair: (pair[0] == "Linear", pair[0].startswith("re:")))  # a name, then patterns, then the class
    return next((group["weights"] for target, group in targets if target == "Linear" or _matches(layer, target)), None)


def _matches(layer: str, pattern: str) -> bool:
    return re.match(pattern.removeprefix("re:"), layer) is not None if pattern.startswith("re:") else layer == pattern
