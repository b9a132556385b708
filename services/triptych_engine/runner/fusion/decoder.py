"""A whole decoder of the common kind without the model's own forward pass: embedding, layers in one call, last norm, output head.
Where the kernels can, all of these are one call.

With few rows, a layer computes for about a hundred microseconds, while transformers' forward pass goes through a dozen Python calls
per layer, and builds masks and outputs. Whether a model does nothing else does not depend on its class: its calls on a real input
are recorded, and each part must get the very tensor that the part before it returned, unchanged but for a known factor.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from triptych_engine.runner.attention.paged import AttentionBackend, attending
from triptych_engine.runner.fusion.calls import ModuleCall, is_same_tensor, recorded_calls
from triptych_engine.runner.fusion.kernels import FusedKernels, WholeModel
from triptych_engine.runner.fusion.layer import FusedDecoderLayer, first_tokens, trial_backend
from triptych_engine.runner.fusion.rotary import Rotation, dense, rotation_of
from triptych_engine.runner.verdicts import Verdicts

log = logging.getLogger(__name__)


class Decoder:
    """The parts of a model that `find_decoder` has recognised. See WholeDecoder.

    Args:
        embedding: token ids [1, num_tokens] -> [1, num_tokens, hidden_size].
        rotations: of the layers, in turn.
        layers: all with a kernel, of one stack.
        norm: [n, hidden_size] -> [n, hidden_size].
        head: [1, n, hidden_size] -> [1, n, vocab_size].
        factors: what the embedding's result is multiplied by, and what the head's is divided by.
    """

    def __init__(
        self,
        kernels: FusedKernels,
        embedding: nn.Module,
        rotations: Sequence[Rotation],
        layers: Sequence[FusedDecoderLayer],
        norm: nn.Module,
        head: nn.Module,
        factors: tuple[float, float],
    ) -> None:
        self._kernels, (self._embedding_scale, self._logits_divisor) = kernels, factors
        self._embedding, self._rotations, self._layers, self._norm, self._head = embedding, rotations, layers, norm, head
        self._stack = kernels.stack([layer.kernel for layer in layers])
        self._ends = (embedding, *dict.fromkeys(one.module for one in rotations if one.module is not None), norm, head)
        self._layer_hooks, self._end_hooks = _hooks_of(layers), _hooks_of(self._ends)
        self._num_hooks = sum(map(len, self._end_hooks))  # of a bfloat16 model's embedding, one that widens its result
        self._whole: WholeModel | None = None

    @torch.inference_mode()
    def compute_as_one(self, token_ids: torch.Tensor, position_ids: torch.Tensor) -> None:
        """Compute all parts in one call from now on, if the kernels can. Arguments as of `find_decoder`."""
        hidden = self._embedding(token_ids[None, :1])
        rotary = self._rotations[0], hidden, position_ids
        parts = self._stack, self._embedding, rotary, self._norm, self._head
        self._whole = self._kernels.whole_model(*parts, self._embedding_scale)

    def compute_by_parts(self) -> None:
        """Compute the parts in several calls from now on."""
        self._whole = None

    @property
    def is_one_call(self) -> bool:
        """Whether all parts are computed in one call, unless a step's positions or a hook need several."""
        return self._whole is not None

    def takes(self, backend: AttentionBackend) -> bool:
        """Whether it can compute a step. A hook may read or change what a layer gets and returns; then each layer is called."""
        return self._kernels.attends_with(backend) and not any(self._layer_hooks)

    def hidden(
        self,
        token_ids: torch.Tensor,
        position_ids: torch.Tensor,
        backend: AttentionBackend,
        inputs_embeds: torch.Tensor | None = None,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        embeds = self._embedding(token_ids[None]) if inputs_embeds is None else inputs_embeds
        if self._embedding_scale != 1:
            embeds = embeds * self._embedding_scale
        tables = {one: dense(one(embeds, position_ids)) for one in dict.fromkeys(self._rotations)}
        states = embeds[0] if embeds.dtype == torch.float32 else embeds[0].float()
        states = self._stack.compute(backend, states.contiguous(), [tables[rotation] for rotation in self._rotations])
        hidden: torch.Tensor = self._norm(states if wanted is None else states[wanted])
        return hidden

    def logits(
        self,
        token_ids: torch.Tensor,
        position_ids: torch.Tensor,
        backend: AttentionBackend,
        inputs_embeds: torch.Tensor | None,
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        whole = self._whole
        if whole is not None and whole.takes(position_ids) and sum(map(len, self._end_hooks)) == self._num_hooks:
            return self._divided(whole.logits(backend, token_ids, position_ids, inputs_embeds, wanted))
        return self.logits_by_parts(token_ids, position_ids, backend, inputs_embeds, wanted)

    def logits_by_parts(self, *arguments: Any) -> torch.Tensor:
        """Like `logits`, in several calls."""
        return self._divided(self._head(self.hidden(*arguments)[None])[0])

    def _divided(self, logits: torch.Tensor) -> torch.Tensor:
        return logits if self._logits_divisor == 1 else logits.div_(self._logits_divisor)


def _hooks_of(modules: Sequence[nn.Module]) -> list[Any]:
    """Where the modules keep the hooks that may read or change what they get and return."""
    return [hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)]


def find_decoder(
    model: PreTrainedModel,
    kernels: FusedKernels,
    token_ids: torch.Tensor,
    position_ids: torch.Tensor,
    question: str = "decoder",
    verdicts: Verdicts | None = None,
) -> Decoder | None:
    """The decoder that a model consists of; None if it consists of more, or in another order.

    Args:
        token_ids: [num_tokens] of a prompt on which the decoder is compared with the model.
        position_ids: in the model's form, spread over the whole context.
        question: what the names of its parts are called in the verdicts.
    """
    layers = [module for module in model.modules() if isinstance(module, FusedDecoderLayer)]
    wholes = [layer.kernel for layer in layers]
    verdicts = verdicts or Verdicts()
    if not verdicts.of(f"{question} has layers of one stack", lambda: all(wholes) and kernels.can_stack(wholes)):
        return None
    own_names = {module: name for name, module in model.named_modules()}

    def find() -> list[list[str]] | None:
        parts = _find_parts(model, kernels, layers, token_ids, position_ids)
        if parts is None:
            return None
        return [
            [own_names[module] for module in parts.ends],
            *([own_names[one.module], *one.args] if one.module is not None else [] for one in parts.rotations),
        ]

    names = verdicts.of(question, find)
    if names is None:
        return None
    ends, *rotations = names
    embedding, norm, head = map(model.get_submodule, ends)
    known = [Rotation(model.get_submodule(given[0]), tuple(given[1:])) if given else Rotation() for given in rotations]
    decoder = _decoder_of(kernels, layers, _Parts((embedding, norm, head), known, _factors_of(model) or (1.0, 1.0)))
    is_one_call = _becomes_one_call(decoder, token_ids, position_ids)
    # Asked first: a rank that computes by parts would not take part in what the others compute to compare.
    if not verdicts.of(f"{question} can be one call", lambda: is_one_call) or not verdicts.of(
        f"{question} in one call", lambda: _computes_as_one(decoder, model, kernels, layers, token_ids, position_ids)
    ):
        decoder.compute_by_parts()
    return decoder


@dataclass(frozen=True)
class _Parts:
    """What a decoder has besides its layers: embedding, last norm and head; the rotary embedding of each layer; and factors, see
    Decoder."""

    ends: tuple[nn.Module, nn.Module, nn.Module]
    rotations: list[Rotation]
    factors: tuple[float, float]


def _factors_of(model: PreTrainedModel) -> tuple[float, float] | None:
    """The factors of a model that has them, by the names in Granite's configurations."""
    config = model.config.get_text_config()
    scale, divisor = (getattr(config, name, None) for name in ("embedding_multiplier", "logits_scaling"))
    return None if scale is None or divisor is None else (float(scale), float(divisor))


def _decoder_of(kernels: FusedKernels, layers: Sequence[FusedDecoderLayer], parts: _Parts) -> Decoder:
    embedding, norm, head = parts.ends
    return Decoder(kernels, embedding, parts.rotations, layers, norm, head, parts.factors)


def _find_parts(
    model: PreTrainedModel,
    kernels: FusedKernels,
    layers: Sequence[FusedDecoderLayer],
    token_ids: torch.Tensor,
    position_ids: torch.Tensor,
) -> _Parts | None:
    """The parts of the decoder that the model is, if they compute what the model does."""
    inside = {part for layer in layers for part in layer.modules()} - set(layers)
    calls, result = recorded_calls(model, [part for part in model.modules() if part not in inside], token_ids, position_ids)
    parts = _parts_of(model, layers, calls, result.logits, position_ids)
    if parts is None or (len(set(parts.rotations)) > 1 and not kernels.rotates_by_layer):
        return None
    try:
        if _computes_the_same(_decoder_of(kernels, layers, parts), model, kernels, layers, token_ids, position_ids):
            return parts
        why = "compute something else"
    except Exception as error:  # the modules' code is not ours
        why = f"fail ({error})"
    log.warning("the model's own forward pass is used: its parts by themselves %s", why)
    return None


def _parts_of(
    model: PreTrainedModel,
    layers: Sequence[FusedDecoderLayer],
    calls: Sequence[ModuleCall],
    logits: torch.Tensor,
    position_ids: torch.Tensor,
) -> _Parts | None:
    """The parts, if each gets what the one before it returned. Each layer must be called once."""
    stack = [call for call in calls if call.module in set(layers)]
    if [call.module for call in stack] != list(layers):
        return None
    factors = _factors_of(model)
    scale, divisor = factors or (1.0, 1.0)
    rotations = [rotation_of(layer, calls, stack[0].input, position_ids) for layer in stack]
    embeddings = [call for call in calls if call.module is model.get_input_embeddings()]
    heads = [call for call in calls if call.module is model.get_output_embeddings()]
    norms = [call for call in calls if call not in stack and stack[-1].hands_on_to(call)]
    if not (len(embeddings) == len(heads) == len(norms) == 1):
        return None
    begins = embeddings[0].hands_on_to(stack[0]) or (factors and torch.equal(embeddings[0].output * scale, stack[0].input))
    ends = is_same_tensor(heads[0].output, logits) or (factors and torch.equal(heads[0].output / divisor, logits))
    if not begins or not ends:
        return None
    if not all(before.hands_on_to(call) for before, call in pairwise([*stack, *norms, *heads])):
        return None
    known = [rotation for rotation in rotations if rotation is not None]
    if len(known) < len(rotations):
        return None
    # Whatever does not rotate may get the cosines of the others.
    first = next((rotation for rotation in known if rotation.module is not None), Rotation())
    known = [first if rotation.module is None else rotation for rotation in known]
    return _Parts((embeddings[0].module, norms[0].module, heads[0].module), known, (scale, divisor))


def _computes_the_same(
    decoder: Decoder,
    model: PreTrainedModel,
    kernels: FusedKernels,
    layers: Sequence[FusedDecoderLayer],
    token_ids: torch.Tensor,
    position_ids: torch.Tensor,
) -> bool:
    """Whether its logits are the model's."""
    backend = trial_backend(layers, kernels, len(token_ids), model.dtype)
    if backend is None:
        return False
    every = torch.arange(len(token_ids), device=token_ids.device)
    with torch.inference_mode(), attending(backend):
        backend.begin(first_tokens(len(token_ids)))
        expected: Any = model(input_ids=token_ids[None], position_ids=position_ids, use_cache=False)
        backend.begin(first_tokens(len(token_ids)))
        return torch.equal(decoder.logits(token_ids, position_ids, backend, None, every), expected.logits[0])


def _becomes_one_call(decoder: Decoder, token_ids: torch.Tensor, position_ids: torch.Tensor) -> bool:
    """Let it compute all parts in one call, and return whether it can."""
    try:
        decoder.compute_as_one(token_ids, position_ids)
    except Exception as error:  # the modules' code is not ours
        log.warning("the model's parts are computed in several calls: %s", error)
    return decoder.is_one_call


def _computes_as_one(decoder: Decoder, *trial: Any) -> bool:
    """Whether all parts in one call give the model's logits.

    Args:
        trial: the further arguments of `_computes_the_same`.
    """
    try:
        if _computes_the_same(decoder, *trial):
            return True
        why = "computes something else"
    except Exception as error:  # the modules' code is not ours
        why = f"fails ({error})"
    log.warning("the model's parts are computed in several calls: one call %s", why)
    return False
