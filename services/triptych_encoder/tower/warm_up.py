"""Encodes a first item of each modality before the service is ready. This allocates memory and checks that the towers work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO

import numpy as np
import soundfile
import torch
from PIL import Image
from triptych.errors import TriptychError, UnsupportedModelError
from triptych.v1 import common_pb2

from triptych_encoder.cache.item import PreprocessedItem
from triptych_encoder.media.preprocess import PreprocessResult
from triptych_encoder.tower.tower import Tower

log = logging.getLogger(__name__)
Modality = common_pb2.Modality
_EDGE, _SAMPLES, _RATE = 96, 16_000, 16_000
#: Least cosine similarity between an item's embeddings when it is encoded alone and in a batch.
_MIN_SIMILARITY = {torch.float32: 0.9999}
_MIN_SIMILARITY_ROUNDED = 0.99


def warm_up(tower: Tower, prepare: Callable[..., PreprocessResult], modalities: Iterable[common_pb2.Modality], name: str) -> bool:
    """Encode two made-up items of each modality, separately and together.

    Args:
        prepare: calls `Preprocessor.prepare` in the thread where it should run.

    Returns:
        Whether items may share a batch. In some families they may not, because the other items of a batch change the result.

    Raises:
        UnsupportedModelError: the towers' number of embeddings differs from the processor's, or values are not finite.
    """
    may_share = True
    for modality in modalities:
        if modality == Modality.MODALITY_VIDEO:
            continue  # videos use the image tower
        make = _picture if modality == Modality.MODALITY_IMAGE else _sound
        try:
            items = [prepare(modality, make(seed), {}).item for seed in (1, 2)]
            alone = [tower.encode([item])[0] for item in items]
            may_share = may_share and _agree(alone, _together(tower, items))
        except (TriptychError, RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
            kind = Modality.Name(modality).removeprefix("MODALITY_").lower()
            raise UnsupportedModelError(f"cannot encode {kind} for {name}: {str(error).splitlines()[0]}") from error
        if not all(torch.isfinite(embeddings["embeds"]).all() for embeddings in alone):
            raise UnsupportedModelError(f"the towers of {name} give embeddings that are not numbers")
    if not may_share:
        log.warning("embeddings of %s depend on what else is in the batch; items are encoded one by one", name)
    return may_share


def _together(tower: Tower, items: Sequence[PreprocessedItem]) -> list[dict[str, torch.Tensor]] | None:
    if tower.signature(items[0]) != tower.signature(items[1]):
        return None
    return tower.encode(items)


def _agree(alone: Sequence[dict[str, torch.Tensor]], together: Sequence[dict[str, torch.Tensor]] | None) -> bool:
    if together is None:
        return True
    required = _MIN_SIMILARITY.get(alone[0]["embeds"].dtype, _MIN_SIMILARITY_ROUNDED)
    similarities = [
        torch.nn.functional.cosine_similarity(a[key].float(), b[key].float(), dim=-1).min().item()
        for a, b in zip(alone, together, strict=True)
        for key in a
    ]
    return min(similarities) >= required


def _picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (_EDGE, _EDGE, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _sound(seed: int) -> bytes:
    file = BytesIO()
    soundfile.write(file, np.random.default_rng(seed).standard_normal(_SAMPLES) * 0.1, _RATE, format="WAV")
    return file.getvalue()
