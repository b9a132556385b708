"""Loads the towers and the projector of a checkpoint with transformers, without its language model."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
from transformers.utils import is_torchvision_available
from triptych.errors import StartupError, UnsupportedModelError
from triptych_common.model.dtype import checkpoint_dtype
from triptych_common.model.weights import check_weight_files

from triptych_encoder.media.processors import PROCESSOR_FILES
from triptych_encoder.tower.packed_linear import compute_dtype, pack_linears
from triptych_encoder.tower.tower import TOWER_METHODS, WITHOUT_METHOD

log = logging.getLogger(__name__)
#: Parts of Omni checkpoints other than the thinker.
_OMNI_SPEECH = ("talker", "token2wav", "code2wav")


@dataclass(frozen=True)
class LoadedTowers:
    """A model without its language model, and what identifies its embeddings."""

    model: PreTrainedModel
    config: PretrainedConfig
    dtype: torch.dtype  # compute dtype
    embedding_dtype: torch.dtype
    device: torch.device
    #: sha256 of everything that all embeddings depend on.
    embedding_fingerprint: bytes


def load_config(path: Path, name: str) -> PretrainedConfig:
    """The configuration of the part with the towers. In an Omni model that is the thinker."""
    try:
        config = AutoConfig.from_pretrained(path)
    except (ValueError, OSError) as error:
        raise UnsupportedModelError(f"cannot encode for {name}: {str(error).splitlines()[0]}") from error
    return getattr(config, "thinker_config", config)


def load_towers(
    path: Path, name: str, config: PretrainedConfig, *, dtype: torch.dtype | None, device: torch.device
) -> LoadedTowers:
    """Load the towers of a checkpoint onto a device.

    Args:
        dtype: dtype of the embeddings and of the computation; None for the checkpoint's own. A CPU without instructions for it
            computes in float32, because emulation is several times slower.

    Raises:
        UnsupportedModelError: the model has no towers, or is unknown to transformers.
        StartupError: the model's files cannot be read or lack weights.
    """
    cls = _model_class(config, name)
    check_weight_files(path)
    embedding_dtype: torch.dtype = dtype or getattr(torch, checkpoint_dtype(path))
    dtype = compute_dtype(embedding_dtype, device)
    try:
        model, info = _towers_only(cls).from_pretrained(path, config=config, dtype=dtype, output_loading_info=True)
    except ImportError as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        raise StartupError(f"the towers of {name} ({config.model_type}) need a package that is not installed: {reason}") from error
    except (OSError, RuntimeError, SafetensorError) as error:
        raise StartupError(f"cannot load {name}: {str(error).splitlines()[0]}") from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise StartupError(f"the checkpoint of {name} lacks {len(missing)} weights of its towers, e.g. {missing[0]}")
    model = model.eval().requires_grad_(False)
    scope = _embedding_fingerprint(model, path, f"{embedding_dtype}:{dtype}")
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    log.info("loaded towers and projector: %.1f million parameters in %s", num_parameters / 1e6, str(dtype).removeprefix("torch."))
    model = model.to(device)
    pack_linears(model)
    return LoadedTowers(model, config, dtype, embedding_dtype, device, scope)


def _model_class(config: PretrainedConfig, name: str) -> type[PreTrainedModel]:
    entry = MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.get(config.model_type) or next(iter(config.architectures or ()), "")
    candidates = [entry] if isinstance(entry, str) else list(entry)
    cls = getattr(transformers, candidates[0], None) if candidates else None
    if cls is None:
        raise UnsupportedModelError(f"{name} ({config.model_type}) is no multimodal model that transformers knows")
    if not any(hasattr(cls, method) for method in TOWER_METHODS.values()) and config.model_type not in WITHOUT_METHOD:
        raise UnsupportedModelError(f"{name} ({config.model_type}) has no towers for pictures, sounds or video")
    return cls


def _towers_only(cls: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """A class that builds the model without its language model.

    from_pretrained builds the model on the meta device, so the language model's weights are never read. The class keeps its name,
    because transformers looks up conversions and configurations by it.
    """

    class TowersOnly(cls):
        def __init__(self, config: PretrainedConfig, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            dropped = _drop_language_model(self)
            names = {parameter for parameter, _ in self.named_parameters(remove_duplicate=False)}
            tied = getattr(self, "all_tied_weights_keys", None) or {}
            self.all_tied_weights_keys = {a: b for a, b in tied.items() if a in names and b in names}
            self._keys_to_ignore_on_load_unexpected = {rf"(^|\.){name}\." for name in (*dropped, *_OMNI_SPEECH)}

    TowersOnly.__name__, TowersOnly.__qualname__, TowersOnly.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return TowersOnly


def _drop_language_model(model: Any) -> list[str]:
    """Set the language model and the output head to None. Returns their names."""
    inner = getattr(model, model.base_model_prefix, model)
    decoder = inner.get_decoder() if hasattr(inner, "get_decoder") else getattr(inner, "language_model", None)
    dropped = []
    for parent in (inner, model):
        for name, child in list(parent.named_children()):
            if child is decoder or name in ("lm_head", "proj_out"):
                delattr(parent, name)
                setattr(parent, name, None)
                dropped.append(name)
    if decoder is None or len(dropped) == 0:
        raise UnsupportedModelError(f"{type(model).__name__} has no language model beside its towers")
    return dropped


def _embedding_fingerprint(model: nn.Module, path: Path, dtypes: str) -> bytes:
    """sha256 of the configuration and the loaded weights. Fine-tuned models differ only in their weights."""
    digest = hashlib.sha256(f"{transformers.__version__}:{dtypes}:torchvision={is_torchvision_available()}".encode())
    for file in ("config.json", *PROCESSOR_FILES):
        content = (path / file).read_bytes() if (path / file).is_file() else b""
        digest.update(f"{file}:{len(content)}:".encode() + content)
    for name, tensor in model.state_dict().items():
        digest.update(f"{name}:{tuple(tensor.shape)}:".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()
