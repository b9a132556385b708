"""Builds multimodal models without their towers, which belong to the encoder."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

log = logging.getLogger(__name__)
#: Parts of Omni checkpoints besides the thinker.
_OMNI_SPEECH = ("talker", "token2wav", "code2wav")


def language_model_only(cls: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """A class that builds the model without its towers.

    Under from_pretrained this happens on the meta device, so the towers' weights are never read.

    The class keeps its name, because transformers uses it to look up conversions and configurations.
    """

    class LanguageModelOnly(cls):
        def __init__(self, config: PretrainedConfig, *args: Any, **kwargs: Any) -> None:
            with _towers_may_lack_packages(config.get_text_config()):
                super().__init__(config, *args, **kwargs)
            inner: Any = getattr(self, self.base_model_prefix, self)
            towers = _towers(inner)
            for name, tower in towers.items():
                parent, _, child = name.rpartition(".")
                stand_in = _AbsentTower() if isinstance(tower, (PreTrainedModel, _AbsentTower)) else None
                setattr(inner.get_submodule(parent), child, stand_in)
            names = {parameter for parameter, _ in self.named_parameters(remove_duplicate=False)}
            tied = getattr(self, "all_tied_weights_keys", None) or {}
            self.all_tied_weights_keys = {a: b for a, b in tied.items() if a in names and b in names}
            self._keys_to_ignore_on_load_unexpected = {rf"(^|\.){re.escape(tower)}\." for tower in (*towers, *_OMNI_SPEECH)}

    LanguageModelOnly.__name__, LanguageModelOnly.__qualname__ = cls.__name__, cls.__qualname__
    LanguageModelOnly.__module__ = cls.__module__
    return LanguageModelOnly


def decoder_only(cls: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """The class of an encoder-decoder model's decoder, which expects its encoder's weights beside its own."""

    class DecoderOnly(cls):
        _keys_to_ignore_on_load_unexpected = (r"^model\.encoder\.",)

    DecoderOnly.__name__, DecoderOnly.__qualname__, DecoderOnly.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return DecoderOnly


def _towers(inner: Any) -> dict[str, nn.Module]:
    """The parts of a multimodal model that are not its language model, by name.

    They stand beside the language model. If the model is its own language model, they are the models inside it.
    """
    language_model = inner.get_decoder() if hasattr(inner, "get_decoder") else inner.language_model
    if language_model is not inner:
        return {name: child for name, child in inner.named_children() if not any(m is language_model for m in child.modules())}
    models = {name: part for name, part in inner.named_modules() if name and isinstance(part, (PreTrainedModel, _AbsentTower))}
    return {name: part for name, part in models.items() if not any(name.startswith(f"{other}.") for other in models)}


class _AbsentTower(nn.Module):
    """Replaces a tower. Some forward passes read its device before they check that there is nothing to encode."""

    device = torch.device("cpu")


@contextlib.contextmanager
def _towers_may_lack_packages(text_config: PretrainedConfig) -> Iterator[None]:
    """Let a tower whose package is not installed, such as timm, be absent from the start. The engine does not use it.

    Args:
        text_config: the configuration of the language model, which must not be absent.
    """
    original = transformers.AutoModel.from_config

    def from_config(config: PretrainedConfig, **kwargs: Any) -> nn.Module:
        try:
            return original(config, **kwargs)
        except ImportError as error:
            if config is text_config:
                raise
            log.info("a tower is left out at once: %s", str(error).strip().splitlines()[0])
            return _AbsentTower()

    transformers.AutoModel.from_config = from_config
    try:
        yield
    finally:
        transformers.AutoModel.from_config = original
