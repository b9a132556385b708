"""Compares a model on the paged path with transformers' ordinary forward pass."""

from __future__ import annotations

import logging

import torch
from torch import nn
from triptych.errors import UnsupportedModelError

from triptych_engine.runner.model.loader import LoadedModel

log = logging.getLogger(__name__)
#: Quantisation -> required similarity between the logits of the quantised model and of the model as it is, on average over the
#: probe's tokens: in a mixture of experts, single tokens can go to another expert. With int8, tiny random models reach 0.997 and
#: more, SmolLM2-135M 0.9999. Of a checkpoint that is quantised, only the layers' inputs are quantised here: it is compared with its
#: own weights.
_SIMILARITIES = {"int8": 0.99, "int4": 0.9, "checkpoint": 0.99}


def check_parity(
    loaded: LoadedModel, logits: torch.Tensor, name: str, *, cache_dtype: torch.dtype | None = None, quantization: str = "none"
) -> None:
    """Refuse the model if its logits on the paged path differ from those of transformers' ordinary forward pass.

    Args:
        logits: [num_probe_tokens, vocab] of the probe on the paged path.
        cache_dtype: dtype of keys and values; by default the model's.
        quantization: int8, int4 or checkpoint if the logits come from the quantised model, which has passed this check before.

    Raises:
        UnsupportedModelError: they differ by more than rounding, or a useful quantisation, can explain.
    """
    similarities = nn.functional.cosine_similarity(logits.float(), loaded.probe_logits.float(), dim=-1)
    # Equal ones may all be zero, as of a padding token, and then have no angle between them.
    similarities = torch.where((logits == loaded.probe_logits).all(-1), 1.0, similarities)
    similarity = (similarities.mean() if quantization != "none" else similarities.min()).item()
    is_exact = loaded.dtype == torch.float32 and cache_dtype in (torch.float32, None)
    required = _SIMILARITIES.get(quantization, 0.9999 if is_exact else 0.99)
    if not similarity >= required:
        where, remedy = "on the paged cache", ""
        if quantization == "checkpoint":
            where = "with inputs of 8 bits"
        elif quantization != "none":
            where, remedy = f"quantised to {quantization}", "; it can be served without --quantization"
        elif cache_dtype is not None and cache_dtype != torch.promote_types(cache_dtype, loaded.dtype):  # an exact one passed
            where = f"with a KV cache in {str(cache_dtype).removeprefix('torch.')}"
            remedy = "; it can be served with --kv-cache-dtype float32"
        raise UnsupportedModelError(
            f"cannot serve {name} ({loaded.config.model_type}): {where} its logits differ from transformers' own "
            f"(cosine similarity {similarity:.4f}, at least {required} is required){remedy}"
        )
    what = "paged" if quantization == "none" else quantization
    log.info("%s logits agree with transformers' own (cosine similarity %.5f)", what, similarity)
