"""The towers and the projector of a checkpoint: from preprocessed items to embeddings, in batches.

transformers' `get_image_features`, `get_audio_features` and `get_video_features` do the work. Their arguments and results differ
between families. Only this file handles the differences:

- The arguments are read from the signatures.
- The embeddings are a tuple or list with one tensor per image, one tensor of rows, or one of [tiles, rows]. All are in the order of
  the items. So the rows are concatenated, and split by the number of placeholder tokens of each item.
- Omni's audio embeddings are in `last_hidden_state`. Qwen3-VL adds `deepstack_features`, one tensor of rows per layer.
- Qwen2-Audio has no such method. This file does the same as its forward method.
- Whisper has none either. Its embeddings are the last states of its encoder.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel
from triptych.errors import InternalError
from triptych.v1 import common_pb2

from triptych_encoder.cache.item import PreprocessedItem

Modality = common_pb2.Modality
#: The methods of transformers' models that compute the embeddings of each modality.
TOWER_METHODS = {
    Modality.MODALITY_IMAGE: "get_image_features",
    Modality.MODALITY_AUDIO: "get_audio_features",
    Modality.MODALITY_VIDEO: "get_video_features",
}
#: Model types that have a tower, but no such method.
WITHOUT_METHOD = frozenset({"qwen2_audio", "whisper"})
#: Floating-point inputs that describe positions. They are never converted to the model's dtype.
_FLOATING_GEOMETRY = frozenset({"second_per_grid_ts", "video_second_per_grid"})


class Tower:
    """Computes embeddings. One thread owns it.

    Args:
        model: the checkpoint's model without its language model.
        dtype: compute dtype of the model.
        embedding_dtype: dtype of the results; by default the same.
    """

    def __init__(
        self, model: PreTrainedModel, device: torch.device, dtype: torch.dtype, embedding_dtype: torch.dtype | None = None
    ) -> None:
        self._device, self._dtype, self._embedding_dtype = device, dtype, embedding_dtype or dtype
        self._methods = _find_methods(model)
        self._takes = {
            modality: frozenset(inspect.signature(getattr(method, "forward", method)).parameters)
            for modality, method in self._methods.items()
        }

    @property
    def modalities(self) -> tuple[common_pb2.Modality, ...]:
        """The modalities that the model has a tower for."""
        return tuple(self._methods)

    def signature(self, item: PreprocessedItem) -> tuple[object, ...]:
        """Items of equal signatures can share a batch: their inputs differ at most in the first dimension."""
        shapes = ((name, tensor.dtype, tuple(tensor.shape[1:])) for name, tensor in sorted(self._inputs(item).items()))
        return (item.modality, *shapes)

    @torch.inference_mode()
    def encode(self, items: Sequence[PreprocessedItem]) -> list[dict[str, torch.Tensor]]:
        """Embeddings of items with equal signatures.

        Returns:
            Per item, on the CPU: embeds [num_tokens, hidden], and deepstack.{i} of the same shape if the family has them.

        Raises:
            InternalError: the tower's number of embeddings differs from the items' number of tokens.
        """
        if sum(item.num_tokens for item in items) == 1:
            # Some models (Mistral3) squeeze away a single row, but not two.
            return self.encode([items[0], items[0]])[:1]
        modality = items[0].modality
        parts = [self._inputs(item) for item in items]
        inputs = {name: self._to_device(name, torch.cat([part[name] for part in parts])) for name in parts[0]}
        output = self._methods[modality](**inputs)
        lengths = [item.num_tokens for item in items]
        rows = {"embeds": _rows(_embeddings(output))}
        for layer, features in enumerate(_field(output, "deepstack_features") or ()):
            rows[f"deepstack.{layer}"] = _rows(features)
        split = {name: _cut(tensor.to(self._embedding_dtype), lengths) for name, tensor in rows.items()}
        return [{name: tensors[index] for name, tensors in split.items()} for index in range(len(items))]

    def _inputs(self, item: PreprocessedItem) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in item.inputs.items() if name in self._takes[item.modality]}

    def _to_device(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point() and name not in _FLOATING_GEOMETRY:
            tensor = tensor.to(self._dtype)
        return tensor.to(self._device)


def _find_methods(model: PreTrainedModel) -> dict[common_pb2.Modality, Callable[..., Any]]:
    inner = getattr(model, getattr(model, "base_model_prefix", ""), model)
    methods: dict[common_pb2.Modality, Callable[..., Any]] = {}
    for modality, name in TOWER_METHODS.items():
        # Prefer the inner model's method: the outer model's wraps it, and may hide its arguments.
        method = getattr(inner, name, None) or getattr(model, name, None)
        if method is not None:
            methods[modality] = method
    if Modality.MODALITY_AUDIO not in methods and model.config.model_type in WITHOUT_METHOD:
        methods[Modality.MODALITY_AUDIO] = inner.encoder if model.config.model_type == "whisper" else _Qwen2Audio(inner)
    return methods


class _Qwen2Audio:
    """The audio part of `Qwen2AudioModel.forward`."""

    def __init__(self, model: Any) -> None:
        self._tower, self._projector = model.audio_tower, model.multi_modal_projector

    def __call__(self, input_features: torch.Tensor, feature_attention_mask: torch.Tensor) -> Mapping[str, torch.Tensor]:
        from transformers.masking_utils import create_bidirectional_mask

        tower = self._tower
        lengths, output_lengths = tower._get_feat_extract_output_lengths(feature_attention_mask.sum(-1))
        num_positions = (input_features.shape[-1] - 2) // 2 + 1
        positions = torch.arange(num_positions, device=lengths.device)
        mask = create_bidirectional_mask(
            config=tower.config,
            inputs_embeds=input_features.new_zeros((len(lengths), num_positions, 1)),
            attention_mask=(positions[None] < lengths[:, None]).long(),
        )
        features = self._projector(tower(input_features, attention_mask=mask).last_hidden_state)
        valid = torch.arange(features.shape[1], device=features.device)[None] < output_lengths.to(features.device)[:, None]
        return {"pooler_output": features[valid]}


def _field(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def _embeddings(output: Any) -> Any:
    if isinstance(output, (torch.Tensor, tuple, list)):
        return output
    pooled = _field(output, "pooler_output")
    return pooled if pooled is not None else _field(output, "last_hidden_state")


def _rows(features: Any) -> torch.Tensor:
    """The features as [num_rows, hidden], from any shape."""
    if isinstance(features, (tuple, list)):
        return torch.cat([_rows(feature) for feature in features])
    return features.reshape(-1, features.shape[-1])


def _cut(rows: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
    if len(rows) != sum(lengths):
        raise InternalError(f"the tower gave {len(rows)} embeddings for {sum(lengths)} placeholder tokens")
    return [part.contiguous().cpu() for part in rows.split(lengths)]
