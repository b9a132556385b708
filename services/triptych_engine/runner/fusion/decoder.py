"""A whole decoder of the common kind without the model's own forward pass: embedding, layers in one call, last norm, output head.
Where the kernels can, all of these are one call.

With few rows, a layer computes for about a hundred microseconds, while transformers' forward pass goes through a dozen Python calls
per layer, and builds masks and outputs. Whether a model does nothing else does not depend on its class: its calls on a real input
are recorded, and each part must get the very tensor that the part before it returned, unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
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
from triptych_engine.runner.fusion.rotary import Rotation, dense
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
    """

    def __init__(
        self,
        kernels: FusedKernels,
        embedding: nn.Module,
        rotations: Sequence[Rotation],
        layers: Sequence[FusedDecoderLayer],
        norm: nn.Module,
        head: nn.Module,
    ) -> None:
        self._kernels = kernels
        self._embedding, self._rotations, self._layers, self._norm, self._head = embedding, rotations, layers, norm, head
        self._stack = kernels.stack([layer.kernel for layer in layers])
        self._ends = (embedding, *(rotation.module for rotation in dict.fromkeys(rotations)), norm, head)
        self._num_hooks = _num_hooks(self._ends)  # of a bfloat16 model's embedding, one that widens its result
        self._whole: WholeModel | None = None

    @torch.inference_mode()
    def compute_as_one(self, token_ids: torch.Tensor, position_ids: torch.Tensor) -> None:
        """Compute all parts in one call from now on, if the kernels can. Arguments as of `find_decoder`."""
        hidden = self._embedding(token_ids[None, :1])
        rotary = self._rotations[0], hidden, position_ids
        self._whole = self._kernels.whole_model(self._stack, self._embedding, rotary, self._norm, self._head)

    def compute_by_parts(self) -> None:
        """Compute the parts in several calls from now on."""
        self._whole = None

    @property
    def is_one_call(self) -> bool:
        """Whether all parts are computed in one call, unless a step's positions or a hook need several."""
        return self._whole is not None

    def takes(self, backend: AttentionBackend) -> bool:
        """Whether it can compute a step. A hook may read or change what a layer gets and returns; then each layer is called."""
        return self._kernels.attends_with(backend) and not _num_hooks(self._layers)

    def hidden(
        self,
        token_ids: torch.Tensor,
        position_ids: torch.Tensor,
        backend: AttentionBackend,
        inputs_embeds: torch.Tensor | None = None,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        embeds = self._embedding(token_ids[None]) if inputs_embeds is None else inputs_embeds
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
        if whole is not None and whole.takes(position_ids) and _num_hooks(self._ends) == self._num_hooks:
            return whole.logits(backend, token_ids, position_ids, inputs_embeds, wanted)
        return self.logits_by_parts(token_ids, position_ids, backend, inputs_embeds, wanted)

    def logits_by_parts(self, *arguments: Any) -> torch.Tensor:
        """Like `logits`, in several calls."""
        logits: torch.Tensor = self._head(self.hidden(*arguments)[None])[0]
        return logits


def _num_hooks(modules: Iterable[nn.Module]) -> int:
    """How many hooks may read or change what the modules get and return."""
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules)


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
        return [[own_names[module] for module in parts.ends], *([own_names[one.module], *one.args] for one in parts.rotations)]

    names = verdicts.of(question, find)
    if names is None:
        return None
    ends, *rotations = names
    embedding, norm, head = map(model.get_submodule, ends)
    parts = _Parts((embedding, norm, head), [Rotation(model.get_submodule(name), tuple(args)) for name, *args in rotations])
    decoder = _decoder_of(kernels, layers, parts)
    is_one_call = _becomes_one_call(decoder, token_ids, position_ids)
    # Asked first: a rank that computes by parts would not take part in what the others compute to compare.
    if not verdicts.of(f"{question} can be one call", lambda: is_one_call) or not verdicts.of(
        f"{question} in one call", lambda: _computes_as_one(decoder, model, kernels, layers, token_ids, position_ids)
    ):
        decoder.compute_by_parts()
    return decoder


@dataclass(frozen=True)
class _Parts:
    """What a decoder has besides its layers: embedding, last norm and head; and the rotary embedding of each layer."""

    ends: tuple[nn.Module, nn.Module, nn.Module]
    rotations: list[Rotation]


def _decoder_of(kernels: FusedKernels, layers: Sequence[FusedDecoderLayer], parts: _Parts) -> Decoder:
    embedding, norm, head = parts.ends
    return Decoder(kernels, embedding, parts.rotations, layers, norm, head)


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
    rotations = [_rotation_of(layer, calls, stack[0].input, position_ids) for layer in stack]
    embeddings = [call for call in calls if call.module is model.get_input_embeddings()]
    heads = [call for call in calls if call.module is model.get_output_embeddings() and is_same_tensor(call.output, logits)]
    norms = [call for call in calls if call not in stack and stack[-1].hands_on_to(call)]
    if not (len(embeddings) == len(heads) == len(norms) == 1):
        return None
    if not all(before.hands_on_to(call) for before, call in pairwise([*embeddings, *stack, *norms, *heads])):
        return None
    known = [rotation for rotation in rotations if rotation is not None]
    if len(known) < len(rotations):
        return None
    return _Parts((embeddings[0].module, norms[0].module, heads[0].module), known)


def _rotation_of(
    layer: ModuleCall, calls: Sequence[ModuleCall], hidden: torch.Tensor, position_ids: torch.Tensor
) -> Rotation | None:
    """What made a layer's cosines and sines, of the embeddings and the position ids."""
    made = [call for call in calls if call.output is layer.position_embeddings]
    if len(made) != 1:
        return None
    given = [*made[0].args, *made[0].kwargs.values()]
    args = tuple(given[2:])
    if (
        len(given) < 2
        or not is_same_tensor(given[0], hidden)
        or not _has_numbers_of(given[1], position_ids)
        or not all(isinstance(arg, str) for arg in args)
    ):
        return None
    return Rotation(made[0].module, args)


def _has_numbers_of(given: Any, position_ids: torch.Tensor) -> bool:
    """Whether a module got the position ids, for which some models make more axes."""
    return isinstance(given, torch.Tensor) and given.shape[-2:] == position_ids.shape[-2:] and bool((given == position_ids).all())


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
