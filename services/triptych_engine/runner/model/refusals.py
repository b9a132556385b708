"""Refuses models that cannot be run correctly. Decides from the configuration, before any weight is read."""

from __future__ import annotations

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)
from triptych.errors import UnsupportedModelError

from triptych_engine.runner.quantization.checkpoints import quantization_of, unsupported_quantization
from triptych_engine.runner.recurrent.layer_types import RECURRENT_LAYER_TYPES, STATELESS_LAYER_TYPES

#: Encoder-decoder models that are served. Their encoders are towers of the encoder service.
_ENCODER_DECODERS = frozenset({"whisper"})
#: What their layers are called, in releases of transformers. Other families use these words for indexers of other kinds.
_INDEXED_LAYER_TYPES = frozenset({"indexed_attention", "deepseek_sparse_attention"})
_INDEXED_MODELS = frozenset({"deepseek_v32", "glm_moe_dsa"})
_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention", *RECURRENT_LAYER_TYPES, *STATELESS_LAYER_TYPES}


def check_supported(config: PretrainedConfig, name: str, max_model_len: int, *, num_ranks: int = 1) -> None:
    """Raise UnsupportedModelError, with name and reason, if the engine would compute the model wrongly or not at all."""
    reason = _reason(config, max_model_len)
    if num_ranks > 1 and RECURRENT_LAYER_TYPES.intersection(getattr(config.get_text_config(), "layer_types", None) or ()):
        reason = reason or "its recurrent layers cannot be divided among ranks; serve it without tensor_parallel_size"
    if num_ranks > 1 and num_selected_keys(config) is not None:
        reason = reason or "its indexers cannot be divided among ranks; serve it without tensor_parallel_size"
    if num_ranks > 1 and has_encoder(config):
        reason = reason or "its cross-attention cannot be divided among ranks; serve it without tensor_parallel_size"
    if reason:
        raise UnsupportedModelError(f"cannot serve {name} ({config.model_type}): {reason}")


def has_encoder(config: PretrainedConfig) -> bool:
    """Whether the model is the decoder of an encoder-decoder model that is served."""
    return config.model_type in _ENCODER_DECODERS


def decoder_config(config: PretrainedConfig) -> PretrainedConfig:
    """The configuration of the part that the engine computes: of an encoder-decoder model the decoder.

    What transformers names after layers and heads in general are those of the encoder.
    """
    if has_encoder(config):
        config.encoder_layers, config.encoder_attention_heads = config.decoder_layers, config.decoder_attention_heads
    return config


def num_selected_keys(config: PretrainedConfig) -> int | None:
    """The number of keys that a token attends to, in a model whose indexers select them; None in others."""
    text = config.get_text_config()
    is_indexed = _INDEXED_LAYER_TYPES.intersection(getattr(text, "layer_types", None) or ())
    return int(text.index_topk) if is_indexed else None


def is_multimodal(config: PretrainedConfig) -> bool:
    """Whether the checkpoint has towers besides the language model."""
    if config.model_type in MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES:
        return True
    # Some of transformers' multimodal models are in none of its lists.
    has_tower = hasattr(config, "vision_config") or hasattr(config, "audio_config")
    return has_tower and config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and bool(config.architectures)


def _reason(config: PretrainedConfig, max_model_len: int) -> str | None:
    text = config.get_text_config()
    if config.is_encoder_decoder and not has_encoder(config):
        return f"it is an encoder-decoder model; of these only {', '.join(sorted(_ENCODER_DECODERS))} is served"
    if has_encoder(config) and max_model_len > config.max_target_positions:
        return f"its decoder has {config.max_target_positions} positions; set max_model_len to that or less"
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not is_multimodal(config):
        return "transformers has no causal language model for it"
    if (reason := unsupported_quantization(config)) is not None:
        return reason
    if quantization_of(config) is not None and (is_multimodal(config) or has_encoder(config)):
        return "its weights are quantised, which is supported for text models only"
    return _layer_reason(text) or _rope_reason(text, max_model_len)


def _layer_reason(text: PretrainedConfig) -> str | None:
    known = _LAYER_TYPES | (_INDEXED_LAYER_TYPES if text.model_type in _INDEXED_MODELS else set())
    if odd := sorted(set(getattr(text, "layer_types", None) or ()) - known):
        return f"it has layers of kinds that are not known here ({', '.join(odd)})"
    return None


def _rope_reason(text: PretrainedConfig, max_model_len: int) -> str | None:
    parameters = getattr(text, "rope_parameters", None) or {}
    per_layer_type = [value for value in parameters.values() if isinstance(value, dict)]
    for rope in per_layer_type or [parameters]:
        kind = rope.get("rope_type", "default")
        if kind not in ("dynamic", "longrope"):
            continue
        original = rope.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
        limit = original or text.max_position_embeddings
        if max_model_len > limit:
            depends = f"its {kind} rope depends on the longest position in the batch beyond {limit} tokens"
            return f"{depends}; set max_model_len to that or less"
    return None
