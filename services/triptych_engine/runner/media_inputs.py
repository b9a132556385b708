"""Inputs of a step that come from media: input embeddings, additions to early layers, positions on several axes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from triptych_engine.media.item import EmbeddingSlice, MediaTraits, Modality
from triptych_engine.runner.model.media_traits import find_rope_index
from triptych_engine.scheduling.output import NewSequence

#: Modality -> its value in the modeling code's mm_token_type_ids.
_TOKEN_TYPES = {Modality.IMAGE: 1, Modality.VIDEO: 2, Modality.AUDIO: 3}

#: The index in the flat batch where a slice begins, and the slice.
PlacedSlice = tuple[int, EmbeddingSlice]


class MediaInputs:
    """Prepares the media inputs of one model. Not thread-safe.

    Args:
        model: the model that gets the inputs, with its traits.
        num_position_axes: see LoadedModel.
    """

    def __init__(self, model: PreTrainedModel, traits: MediaTraits, num_position_axes: int) -> None:
        self._model = model
        self._placeholder_ids = sorted(frozenset().union(*traits.placeholder_token_ids.values()))
        self._rope_index = find_rope_index(model) if num_position_axes else None
        self._rope_arguments = inspect.signature(self._rope_index).parameters if self._rope_index else {}
        self._num_axes = num_position_axes

    @classmethod
    def of(cls, model: PreTrainedModel, traits: MediaTraits | str, num_position_axes: int) -> MediaInputs | None:
        """None for a model that takes no media, or whose media are no part of its inputs."""
        if isinstance(traits, str) or traits.num_encoder_states:
            return None
        return cls(model, traits, num_position_axes)

    @contextmanager
    def adding(self, slices: Sequence[PlacedSlice]) -> Iterator[None]:
        """Within this context, forward passes add the slices' deepstack tensors to early layers (Qwen3-VL)."""
        additions: dict[int, list[tuple[int, torch.Tensor]]] = {}  # layer -> first token and rows
        for start, one in slices:
            for name in one.embeddings.tensors:
                if name.startswith("deepstack."):
                    additions.setdefault(int(name.removeprefix("deepstack.")), []).append((start, _rows(one, name)))
        # Removed afterwards: a model whose layers have hooks is not computed in one call (cpu/decoder/decoder.py).
        hooks = [self._layer(layer).register_forward_hook(_adding_rows(rows)) for layer, rows in additions.items()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _layer(self, index: int) -> nn.Module:
        inner: Any = getattr(self._model, self._model.base_model_prefix, self._model)
        return inner.get_decoder().layers[index]

    def embed(self, token_ids: torch.Tensor, slices: Sequence[PlacedSlice]) -> torch.Tensor:
        """Input embeddings [1, num_tokens, hidden_size] of a flat batch, including the embeddings of media.

        Args:
            token_ids: [num_tokens]. The ids of placeholder tokens may be outside the vocabulary.
        """
        token_ids = token_ids.clone()
        for start, one in slices:
            token_ids[start : start + one.num_rows] = 0
        embeds = self._model.get_input_embeddings()(token_ids[None])
        for start, one in slices:
            embeds[0, start : start + one.num_rows] = _rows(one, "embeds").to(embeds)
        return embeds

    def per_layer(self, token_ids: torch.Tensor) -> torch.Tensor | None:
        """What each layer gets of the tokens themselves (Gemma4), [1, num_tokens, num_layers, size]; None of most families.

        Media have that of padding there.
        """
        text = self._model.config.get_text_config()
        if not getattr(text, "hidden_size_per_layer_input", 0):
            return None
        is_media = torch.isin(token_ids, torch.tensor(self._placeholder_ids, device=token_ids.device))
        inner: Any = getattr(self._model, self._model.base_model_prefix, self._model)
        per_layer: torch.Tensor = inner.language_model.get_per_layer_inputs(
            token_ids.masked_fill(is_media, text.pad_token_id)[None], None
        )
        return per_layer

    def positions(self, sequence: NewSequence) -> np.ndarray | None:
        """Positions [axes, num_prompt_tokens] int64 of a prompt; None if all axes have the positions of the tokens.

        Raises:
            ValueError: the model's own code finds no positions for the layouts of the sequence's media.
        """
        if self._rope_index is None or not sequence.media.items:
            return None
        prompt = sequence.token_ids[: sequence.num_prompt_tokens]
        ids = torch.tensor([prompt])
        arguments: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        arguments["mm_token_type_ids"] = torch.from_numpy(_token_types(sequence))[None]
        arguments |= _layouts(sequence)
        known = {name: value for name, value in arguments.items() if name in self._rope_arguments}
        try:
            positions = self._rope_index(**known)[0]
        # The model family's own code raises errors of all kinds when media and prompt do not fit.
        except Exception as error:
            raise ValueError(f"its media do not fit its prompt ({type(error).__name__}: {error})") from error
        if positions.shape != (self._num_axes, 1, len(prompt)) or not torch.equal(positions, positions.long().to(positions.dtype)):
            raise ValueError(f"its media do not fit its prompt (positions of shape {list(positions.shape)})")
        return positions[:, 0].long().cpu().numpy()


def _adding_rows(additions: Sequence[tuple[int, torch.Tensor]]) -> Callable[[nn.Module, Any, Any], None]:
    """A forward hook that adds rows to the output of a layer. Each entry of `additions` has its first token and its rows."""

    def add(module: nn.Module, args: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        for start, rows in additions:
            hidden[0, start : start + len(rows)] += rows.to(hidden)

    return add


def _token_types(sequence: NewSequence) -> np.ndarray:
    types = np.zeros(sequence.num_prompt_tokens, np.int32)
    for placeholder in sequence.media.placeholders:
        types[placeholder.offset : placeholder.end] = _TOKEN_TYPES[placeholder.item.modality]
    return types


def _layouts(sequence: NewSequence) -> dict[str, torch.Tensor]:
    """The items' layouts by name, concatenated in the order of the items in the prompt."""
    joined: dict[str, list[np.ndarray]] = {}
    for item in dict.fromkeys(placeholder.item for placeholder in sequence.media.placeholders):
        for name, array in item.layout.items():
            joined.setdefault(name, []).append(array)
    return {name: torch.from_numpy(np.concatenate(arrays)) for name, arrays in joined.items()}


def _rows(one: EmbeddingSlice, name: str) -> torch.Tensor:
    tensor = one.embeddings.tensors[name]
    flat = torch.frombuffer(tensor.data, dtype=getattr(torch, tensor.dtype))
    return flat.view(tensor.shape)[one.first_row : one.first_row + one.num_rows]
