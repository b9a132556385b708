"""Bidirectional encoders (BERT and its relatives) from transformers, over ragged batches.

The modeling code is transformers' own. Texts lie one after the other without padding if the model gives the same results that way;
otherwise each call has texts of the same length, which need no padding either.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling
from triptych.errors import StartupError, UnsupportedModelError
from triptych_common.model.dtype import checkpoint_dtype
from triptych_common.model.pooling import PoolingModel
from triptych_common.model.weights import check_weight_files

from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.model.loading_info import check_loaded
from triptych_engine.runner.model.precision import compute_dtype
from triptych_engine.runner.pooling.flat_attention import FLAT_ATTENTION, EqualLengths, attending_within
from triptych_engine.runner.pooling.heads import ClassificationHead, Head, embedding_head

log = logging.getLogger(__name__)
#: Lengths of the texts on which ways to compute are compared.
_PROBE_LENGTHS = (23, 7, 7, 12)
#: Largest difference of hidden states that rounding can explain, relative to the largest one.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """Texts one after the other, sorted by length."""

    token_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    type_ids: torch.Tensor  # [num_tokens] int64
    groups: tuple[EqualLengths, ...]


class EncoderModel:
    """A loaded encoder. Computes hidden states, and what its head makes of them."""

    def __init__(self, base: PreTrainedModel, head: Head, device: torch.device, max_model_len: int) -> None:
        self.head = head
        self.device = device
        self._base = base
        self._parameters = inspect.signature(type(base).forward).parameters
        self._padding_id = _padding_id(base)
        self._has_types = "token_type_ids" in self._parameters and getattr(base.config, "type_vocab_size", 2) > 1
        self.is_flat = "position_ids" in self._parameters and self._agrees_when_flat(max_model_len)

    @property
    def vocab_size(self) -> int:
        return int(self._base.config.vocab_size)

    @property
    def base(self) -> PreTrainedModel:
        """The model without its head."""
        return self._base

    def hidden(self, batch: EncoderBatch) -> torch.Tensor:
        """[num_tokens, hidden_size] of a batch."""
        if self.is_flat:
            return self._flat(batch)
        return torch.cat([self._of_equal_lengths(batch, group) for group in batch.groups])

    def _flat(self, batch: EncoderBatch) -> torch.Tensor:
        inputs: dict[str, Any] = {"input_ids": batch.token_ids[None], "position_ids": self._position_ids(batch)[None]}
        if self._has_types:
            inputs["token_type_ids"] = batch.type_ids[None]
        with attending_within(batch.groups):
            hidden: torch.Tensor = self._base(**inputs).last_hidden_state[0]
        return hidden

    def _position_ids(self, batch: EncoderBatch) -> torch.Tensor:
        """[num_tokens] int64. RoBERTa and its relatives count from the id of the padding token on. That token may be in a text: its
        position is its id, and it does not count."""
        if self._padding_id is None:
            return batch.positions
        counts = batch.token_ids != self._padding_id
        total = counts.cumsum(0)
        firsts = torch.arange(len(total), device=self.device) - batch.positions
        return (total - (total - counts.long())[firsts]) * counts + self._padding_id

    def _of_equal_lengths(self, batch: EncoderBatch, group: EqualLengths) -> torch.Tensor:
        shape = (group.count, group.length)
        inputs = {"input_ids": batch.token_ids[group.tokens].view(shape)}
        if self._has_types:
            inputs["token_type_ids"] = batch.type_ids[group.tokens].view(shape)
        if "attention_mask" in self._parameters:
            inputs["attention_mask"] = torch.ones(shape, dtype=torch.int64, device=self.device)
        hidden: torch.Tensor = self._base(**inputs).last_hidden_state
        return hidden.flatten(0, 1)

    @torch.inference_mode()
    def _agrees_when_flat(self, max_model_len: int) -> bool:
        """Whether texts without padding get the hidden states that they get alone. If so, the model attends that way then."""
        base, own = self._base, self._base.config._attn_implementation
        probe = self._probe(max_model_len)
        alone = torch.cat([self._of_equal_lengths(probe, group) for group in probe.groups])
        try:
            base.set_attn_implementation(FLAT_ATTENTION)
            differs = (self._flat(probe) - alone).abs().max() / alone.abs().max()
            if differs <= _TOLERANCE[alone.dtype]:
                return True
            log.info("%s depends on where a text lies in a batch", base.config.model_type)
        # The family's own code may not take several texts in one row.
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
            log.info("%s takes no texts without padding: %s", base.config.model_type, str(error).partition("\n")[0])
        base.set_attn_implementation(own)
        return False

    def _probe(self, max_model_len: int) -> EncoderBatch:
        lengths = np.sort(np.minimum(_PROBE_LENGTHS, max_model_len))
        token_ids = np.arange(lengths.sum()) * 7919 % self.vocab_size
        # Some families give padding a position of its own. Texts have none.
        token_ids[token_ids == self._base.config.pad_token_id] = self.vocab_size - 1
        return encoder_batch(token_ids, lengths, np.zeros(len(lengths), np.int64), self.device)


def encoder_batch(token_ids: np.ndarray, lengths: np.ndarray, second_texts: np.ndarray, device: torch.device) -> EncoderBatch:
    """Lay texts out for the model.

    Args:
        token_ids: [num_tokens] int64, texts one after the other, sorted by length.
        lengths: [n] int64, tokens of each text.
        second_texts: [n] int64, index of the first token of the second text of a pair; 0 if there is none.
    """
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(len(token_ids)) - np.repeat(starts, lengths)
    seconds = np.repeat(np.where(second_texts, second_texts, lengths), lengths)
    sizes, counts = np.unique(lengths, return_counts=True)
    firsts = np.cumsum(sizes * counts) - sizes * counts
    groups = tuple(map(EqualLengths, firsts.tolist(), counts.tolist(), sizes.tolist()))
    arrays = (token_ids, positions, (positions >= seconds).astype(np.int64))
    tokens, where, types = (torch.from_numpy(array).to(device) for array in arrays)
    return EncoderBatch(tokens, where, types, groups)


def load_encoder(config: RunnerConfig, pooling: PoolingModel) -> EncoderModel:
    """Load an encoder with its head.

    Raises:
        UnsupportedModelError: transformers cannot run it.
        StartupError: its files cannot be read, are damaged, or lack weights.
    """
    path, name = config.model_path, config.model_name
    check_weight_files(path)
    dtype = config.dtype or compute_dtype(getattr(torch, checkpoint_dtype(path)), config.device)
    auto = AutoModelForSequenceClassification if pooling.kind == "classify" else AutoModel
    try:
        model, info = auto.from_pretrained(
            path, config=AutoConfig.from_pretrained(path), dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except ValueError as error:
        raise UnsupportedModelError(f"cannot serve {name}: {str(error).splitlines()[0]}") from error
    except (OSError, RuntimeError, SafetensorError) as error:
        raise StartupError(f"cannot load {name}: {str(error).splitlines()[0]}") from error
    # A pooler is for classification. Checkpoints for embeddings often have none.
    check_loaded(info, path, is_needed=lambda key: pooling.kind != "embed" or not key.startswith("pooler."))
    model = model.eval().requires_grad_(False).to(config.device)
    if pooling.kind == "embed":
        return EncoderModel(model, embedding_head(path, pooling, config.device), config.device, config.max_model_len)
    base = getattr(model, model.base_model_prefix)
    setattr(model, model.base_model_prefix, _Computed(base))
    return EncoderModel(base, ClassificationHead(_Classifier(model), pooling.activation), config.device, config.max_model_len)


class _Computed(nn.Module):
    """Replaces the base of a classifier: its hidden states are computed already, and come as input embeddings."""

    def __init__(self, base: PreTrainedModel) -> None:
        super().__init__()
        self._pooler = getattr(base, "pooler", None)
        self.config = base.config

    def forward(self, *args: Any, inputs_embeds: torch.Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
        pooled = self._pooler(inputs_embeds) if self._pooler is not None else None
        return BaseModelOutputWithPooling(last_hidden_state=inputs_embeds, pooler_output=pooled)


class _Classifier:
    """The head of a classifier, which gets the pooled vector of each text as the only hidden state of that text."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(len(vectors), 1, dtype=torch.int64, device=vectors.device)
        logits: torch.Tensor = self._model(inputs_embeds=vectors.to(self._model.dtype)[:, None], attention_mask=mask).logits
        return logits


def _padding_id(base: PreTrainedModel) -> int | None:
    """The id of the padding token, if positions depend on it."""
    embeddings: Any = getattr(base, "embeddings", None)
    return int(embeddings.padding_idx) if hasattr(embeddings, "create_position_ids_from_input_ids") else None
