"""What the attention layers of a model store and attend to, seen in its first forward pass on the paged path."""

from __future__ import annotations

import logging
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig, PreTrainedModel
from triptych.errors import UnsupportedModelError

from triptych_engine.runner.attention.latent import latent_heads
from triptych_engine.runner.attention.paged import LayerShape, attending, current_backend, paged_attention
from triptych_engine.runner.attention.selection import NoMask
from triptych_engine.runner.recurrent.layer_types import RECURRENT_LAYER_TYPES, STATELESS_LAYER_TYPES
from triptych_engine.runner.recurrent.layers import RecurrentLayers

#: Name of the attention during that pass.
OBSERVED_ATTENTION = "triptych_observed"


def switch_attention(model: PreTrainedModel, attention: str) -> None:
    """Make a model attend with a function of transformers' registry. Its warning that towers may not take it is left out,
    because the engine does not load them."""
    log = logging.getLogger("transformers.modeling_utils")
    log.addFilter(_is_not_of_towers)
    try:
        model.set_attn_implementation(attention)
    finally:
        log.removeFilter(_is_not_of_towers)


def _is_not_of_towers(record: logging.LogRecord) -> bool:
    return "without finding the associated sub-model" not in record.getMessage()


def observe_layers(
    model: PreTrainedModel,
    config: PretrainedConfig,
    name: str,
    probe: torch.Tensor,
    max_model_len: int,
    recurrent: RecurrentLayers | None = None,
) -> dict[int, LayerShape]:
    """What each layer stores in the KV cache, by its index.

    Args:
        probe: [num_tokens] token ids.
        recurrent: layers of the model that have states instead, or too; their shapes are noted there.

    Raises:
        UnsupportedModelError: the model does not use the attention that it is switched to, or has a window in its mask only.
    """
    observer = LayerObserver(max_model_len)
    switch_attention(model, OBSERVED_ATTENTION)
    with torch.inference_mode(), attending(observer):  # type: ignore[arg-type]
        try:
            model(input_ids=probe[None], position_ids=None, use_cache=False)
        except (RuntimeError, AttributeError) as error:
            raise UnsupportedModelError(f"cannot serve {name} ({config.model_type}): {error}") from error
    states = set() if recurrent is None else recurrent.layers
    if (problem := _unknown_layers(config.get_text_config(), set(observer.layers), states)) is not None:
        raise UnsupportedModelError(f"cannot serve {name} ({config.model_type}): {problem}")
    window = min(observer.mask_windows.values(), default=max_model_len)
    if window < max_model_len:
        why = f"its attention to the last {window} tokens is in its mask only; set max_model_len to that or less"
        raise UnsupportedModelError(f"cannot serve {name} ({config.model_type}): {why}")
    return observer.layers


def _unknown_layers(text: PretrainedConfig, attending_layers: set[int], recurrent_layers: set[int]) -> str | None:
    """What is not known about the layers of a model; None if nothing."""
    num_layers = text.num_hidden_layers
    kinds = dict(enumerate(getattr(text, "layer_types", None) or ()))
    if lacking := [i for i, kind in kinds.items() if kind in RECURRENT_LAYER_TYPES and i not in recurrent_layers]:
        return f"the states of its layers {', '.join(map(str, lacking))} ({kinds[lacking[0]]}) are not known to this version"
    attending_layers = {layer for layer in attending_layers if layer < num_layers}  # others are keys of indexers
    known = attending_layers | recurrent_layers | {i for i, kind in kinds.items() if kind in STATELESS_LAYER_TYPES}
    if known != set(range(num_layers)) or not attending_layers:
        return f"{len(attending_layers)} of its {num_layers} layers use the attention interface"
    return None


class LayerObserver:
    """Replaces the backend in that pass.

    Attributes:
        layers: what each layer stores.
        mask_windows: number of keys that the tokens of a layer attend to, where only its mask says it. A paged attention has no
            masks, so it would attend to all.
        stores_latents: whether the layer that attends next stores latents.
        chunk: the tokens of that layer attend within chunks of so many; 0 if not.
    """

    name = "observer"

    def __init__(self, max_model_len: int) -> None:
        self._max_model_len = max_model_len
        self.layers: dict[int, LayerShape] = {}
        self.mask_windows: dict[int, int] = {}
        self.stores_latents = False
        self.chunk = 0

    def expect(self, module: Any, local_size: int | None) -> None:
        """Note what is not handed on of a layer that attends next.

        local_size: what limits which keys its tokens attend to, of its mask; None if nothing does.
        """
        self.stores_latents, self.chunk = latent_heads(module) is not None, 0
        if local_size is None:
            return
        kinds = getattr(module.config, "layer_types", None) or ()
        if module.layer_idx < len(kinds) and kinds[module.layer_idx] == "chunked_attention":
            self.chunk = local_size if local_size < self._max_model_len else 0
        else:
            self.mask_windows[int(module.layer_idx)] = local_size

    def forward(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,
        window: int,
        softcap: float,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        window = self.chunk or window
        self.layers[layer] = LayerShape(key.shape[1], key.shape[2], value.shape[2], window, self.stores_latents, self.chunk)
        return value.new_zeros(query.shape[0], query.shape[1], value.shape[2])

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Of the keys of an indexer, see indexers.py."""
        self.layers[layer] = LayerShape(key.shape[1], key.shape[2], key.shape[2], values_in_keys=True)


def _observed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | NoMask | None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    observer = current_backend()
    if isinstance(observer, LayerObserver):
        local_size = None
        if isinstance(attention_mask, torch.Tensor) and attention_mask.dtype == torch.int64:
            local_size, attention_mask = int(attention_mask), None
        observer.expect(module, None if sliding_window else local_size)
    return paged_attention(module, query, key, value, attention_mask, sliding_window=sliding_window, **kwargs)


def _window_instead_of_a_mask(*args: Any, local_size: int | None = None, **kwargs: Any) -> torch.Tensor | None:
    """In the place of a mask, the number of keys that a token attends to: [1, 1, 1, 1] int64; None for all."""
    return None if local_size is None else torch.full((1, 1, 1, 1), local_size)


AttentionInterface.register(OBSERVED_ATTENTION, _observed_attention)
AttentionMaskInterface.register(OBSERVED_ATTENTION, _window_instead_of_a_mask)
