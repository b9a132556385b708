"""Traits of a loaded model for media, read from its configuration and its code; or the reason why it cannot take media."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel
from triptych_common.model import store

from triptych_engine.media.item import TEXT_ONLY, Bidirectional, MediaTraits, Modality
from triptych_engine.runner.model.refusals import is_multimodal

#: Model type -> which prompt tokens attend to later tokens. Other models that distinguish types of tokens have other rules.
_BIDIRECTIONAL = {"gemma3": Bidirectional.IMAGES, "paligemma": Bidirectional.PROMPT}
#: `use_bidirectional_attention` of a Gemma4 -> the same.
_BIDIRECTIONAL_OF_GEMMA4 = {None: Bidirectional.NONE, "vision": Bidirectional.VISION_IN_WINDOWS}
#: What the modeling code of families contains whose masks depend on which tokens are media.
_SIGNS_OF_MASKS = ("block_sequence_ids", "or_mask_function")
#: Argument of get_rope_index -> the modality whose items it describes.
_LAYOUTS = {"image_grid_thw": Modality.IMAGE, "video_grid_thw": Modality.VIDEO, "audio_seqlens": Modality.AUDIO}
#: Arguments of get_rope_index that do not come from layouts, or are optional.
_OTHER_ARGUMENTS = {"input_ids", "mm_token_type_ids", "attention_mask", "second_per_grid_ts"}


def media_traits(
    model: PreTrainedModel, config: PretrainedConfig, num_position_axes: int, num_encoder_states: int = 0
) -> MediaTraits | str:
    """The model's traits, or why it takes no media.

    Args:
        num_position_axes: see LoadedModel.
        num_encoder_states: of an item, if all tokens attend to them.
    """
    if num_encoder_states:
        return MediaTraits({Modality.AUDIO: frozenset()}, config.hidden_size, num_encoder_states=num_encoder_states)
    if not is_multimodal(config):
        return TEXT_ONLY
    if config.model_type in store.TEXT_ONLY:
        return store.TEXT_ONLY[config.model_type]
    placeholders = {modality: ids for modality in Modality if (ids := _placeholder_token_ids(config, modality))}
    if not placeholders:
        return f"{config.model_type} names no placeholder tokens; media items cannot be taken"
    bidirectional = _bidirectional(model, config)
    if bidirectional is None:
        return f"the attention of {config.model_type} depends on types of tokens by rules that are not known here"
    layout_names: dict[Modality, tuple[str, ...]] = {}
    if num_position_axes:
        rope_index = find_rope_index(model)
        if rope_index is None:
            return f"{config.model_type} has positions of several axes and no get_rope_index to make them"
        parameters = inspect.signature(rope_index).parameters.values()
        unknown = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
                   and p.name not in _OTHER_ARGUMENTS | _LAYOUTS.keys()]  # fmt: skip
        if unknown:
            return f"positions of {config.model_type} depend on {unknown[0]}, which is not known here"
        layout_names = {_LAYOUTS[p.name]: (p.name,) for p in parameters if p.name in _LAYOUTS}
    tower = getattr(config, "vision_config", None)
    return MediaTraits(
        placeholder_token_ids=placeholders,
        hidden_size=model.get_input_embeddings().weight.shape[1],
        num_deepstack=len(getattr(tower, "deepstack_visual_indexes", None) or ()),
        bidirectional=bidirectional,
        layout_names=layout_names,
        spatial_merge_size=getattr(tower, "spatial_merge_size", 1) or 1,
    )


def _bidirectional(model: PreTrainedModel, config: PretrainedConfig) -> Bidirectional | None:
    """Which prompt tokens attend to later tokens; None if that is not known."""
    if config.model_type in _BIDIRECTIONAL:
        return _BIDIRECTIONAL[config.model_type]
    if config.model_type == "gemma4":
        return _BIDIRECTIONAL_OF_GEMMA4.get(config.get_text_config().use_bidirectional_attention)
    code = inspect.getsource(inspect.getmodule(type(model)) or type(model))
    depends = "token_type_ids" in inspect.signature(type(model).forward).parameters or any(sign in code for sign in _SIGNS_OF_MASKS)
    return None if depends else Bidirectional.NONE


def find_rope_index(model: PreTrainedModel) -> Callable[..., Any] | None:
    """The model's method that computes positions on several axes; None if it has none."""
    inner = getattr(model, model.base_model_prefix, model)
    return getattr(inner, "get_rope_index", None) or getattr(model, "get_rope_index", None)


def _placeholder_token_ids(config: PretrainedConfig, modality: Modality) -> frozenset[int]:
    names = (f"{modality.value}_token_id", f"{modality.value}_token_index")
    found = (getattr(config, name, None) for name in names)
    return frozenset(int(token_id) for token_id in found if token_id is not None)
