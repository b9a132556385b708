"""Loads a language model with transformers and switches it to paged attention.

The modeling code is transformers' own. Of a multimodal checkpoint only the language model is loaded: the towers belong to the
encoder. Before the model is used, its logits on the paged path are compared with those of transformers' ordinary forward pass.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
from triptych.errors import StartupError, UnsupportedModelError
from triptych_common.model.dtype import checkpoint_dtype
from triptych_common.model.weights import check_weight_files, gguf_file

from triptych_engine.runner.attention.indexers import attach_indexers
from triptych_engine.runner.attention.observer import observe_layers, switch_attention
from triptych_engine.runner.attention.paged import ATTENTION_NAME, AttentionBackend, LayerShape, attending
from triptych_engine.runner.attention.query_scale import attach_positions
from triptych_engine.runner.cross_attention.layers import CrossLayers, attach_cross_attention, probe_states
from triptych_engine.runner.model.loading_info import check_loaded
from triptych_engine.runner.model.precision import check_quantized, compute_dtype
from triptych_engine.runner.model.refusals import check_supported, decoder_config, has_encoder, is_multimodal
from triptych_engine.runner.model.towers import decoder_only, language_model_only
from triptych_engine.runner.model.whole_decoder import WholeDecoder
from triptych_engine.runner.parallel.group import RankGroup
from triptych_engine.runner.parallel.loading import fill_share, load_share
from triptych_engine.runner.quantization.checkpoints import check_plain, load_quantized, quantization_of
from triptych_engine.runner.quantization.filling import fill_model
from triptych_engine.runner.quantization.gguf import load_gguf
from triptych_engine.runner.quantization.tensor import QuantizedModules
from triptych_engine.runner.recurrent.attach import UnknownStateError, attach_recurrent_layers
from triptych_engine.runner.recurrent.layers import RecurrentLayers
from triptych_engine.runner.verdicts import Verdicts

log = logging.getLogger(__name__)
#: Maximum length of the sequence on which the paged path is compared with the ordinary one.
NUM_PROBE_TOKENS = 24


@dataclass
class LoadedModel:
    """A language model that uses paged attention."""

    model: PreTrainedModel
    config: PretrainedConfig
    layers: dict[int, LayerShape]  # layer index -> what it stores per token
    #: Layers with a state per sequence; None if there are none.
    recurrent: RecurrentLayers | None
    #: Cross-attention to an encoder's states; None if there is none.
    cross: CrossLayers | None
    dtype: torch.dtype
    checkpoint_dtype: torch.dtype
    device: torch.device
    vocab_size: int
    #: Position ids have a leading dimension of this size (time, height, width); 0 for plain positions.
    num_position_axes: int
    #: Position of a prompt's first token.
    first_position: int
    #: Whether the checkpoint's weights are quantised.
    is_quantized: bool
    #: Whether the model's forward pass can return only the logits of given tokens.
    picks_logits: bool
    probe_token_ids: torch.Tensor  # [num_probe_tokens] int64
    #: [num_probe_tokens, vocab] of transformers' ordinary forward pass; empty once the checks are over.
    probe_logits: torch.Tensor
    #: Used in place of the model's forward pass where it can.
    decoder: WholeDecoder | None = None

    def position_ids(self, positions: torch.Tensor) -> torch.Tensor:
        """Positions in the model's form, from [num_tokens], or from [num_position_axes, num_tokens] if the axes differ."""
        if self.first_position:
            positions = positions + self.first_position
        if positions.ndim == 2:
            return positions[:, None]
        axes = self.num_position_axes
        return positions[None].expand(axes, 1, -1) if axes else positions[None]

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        logits_indices: torch.Tensor,
        backend: AttentionBackend,
        inputs_embeds: torch.Tensor | None = None,
        per_layer_inputs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run a ragged batch.

        Args:
            token_ids: [num_tokens] int64.
            positions: int64, [num_tokens], or [num_position_axes, num_tokens] if the axes differ.
            logits_indices: [n] int64, the tokens whose logits are wanted.
            inputs_embeds: [1, num_tokens, hidden_size] that replace the tokens' own embeddings.
            per_layer_inputs: see `MediaInputs.per_layer`.

        Returns:
            [n, vocab_size].
        """
        if self.decoder is not None and self.decoder.takes(backend):
            return self.decoder.logits(token_ids, self.position_ids(positions), backend, inputs_embeds, logits_indices)
        if self.picks_logits:
            with attending(backend):
                inputs = self._inputs(token_ids, positions, inputs_embeds)
                if per_layer_inputs is not None:
                    inputs["per_layer_inputs"] = per_layer_inputs
                return self.model(**inputs, logits_to_keep=logits_indices).logits[0]
        hidden = self.hidden(token_ids, positions, backend, inputs_embeds)
        return self.model.get_output_embeddings()(hidden[None, logits_indices])[0]

    def hidden(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        backend: AttentionBackend,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[num_tokens, hidden_size]: the last hidden states of a ragged batch, with arguments as of `forward`."""
        if self.decoder is not None and self.decoder.takes(backend):
            return self.decoder.hidden(token_ids, self.position_ids(positions), backend, inputs_embeds)
        with attending(backend):
            inputs = self._inputs(token_ids, positions, inputs_embeds)
            hidden: torch.Tensor = getattr(self.model, self.model.base_model_prefix)(**inputs).last_hidden_state[0]
            return hidden

    def _inputs(self, token_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None) -> dict[str, Any]:
        inputs: dict[str, Any] = {
            "input_ids": token_ids[None] if inputs_embeds is None else None,
            "position_ids": self.position_ids(positions),
            "attention_mask": None,
            "past_key_values": None,
            "use_cache": False,
        }
        if inputs_embeds is not None:
            inputs["inputs_embeds"] = inputs_embeds
        return inputs


def load_model(
    path: Path,
    name: str,
    *,
    dtype: torch.dtype | None,
    device: torch.device,
    max_model_len: int,
    generates: bool = True,
    quantized_modules: QuantizedModules | None = None,
    group: RankGroup | None = None,
    verdicts: Verdicts | None = None,
    keep_latents: Callable[[PreTrainedModel, torch.Tensor, Verdicts], int] | None = None,
) -> LoadedModel:
    """Load the language model of a checkpoint.

    Args:
        dtype: None chooses the best one for the checkpoint on the device.
        generates: the checkpoint must have the weights of the output head.
        quantized_modules: makes the layers of a checkpoint that is quantised; None if such ones cannot be computed here.
        verdicts: of the same checkpoint, if it was loaded before in this process.
        group: the ranks among which the model is divided; None if it is not.
        keep_latents: called with the model, the probe and the verdicts, before it is seen what layers store; see fusion/latent.py.

    Raises:
        UnsupportedModelError: it could not be run correctly.
        StartupError: its files cannot be read, are damaged, or lack weights.
    """
    try:
        config = AutoConfig.from_pretrained(path)
        config = getattr(config, "thinker_config", config)  # the part of Omni models that generates text
        config = decoder_config(config)
    except (ValueError, OSError) as error:
        raise UnsupportedModelError(f"cannot serve {name}: {str(error).splitlines()[0]}") from error
    check_supported(config, name, max_model_len, num_ranks=1 if group is None else group.size)
    check_weight_files(path)
    checkpoint: torch.dtype = getattr(torch, checkpoint_dtype(path))
    gguf = gguf_file(path)
    is_quantized = gguf is not None or quantization_of(config) is not None
    if is_quantized:
        check_quantized(name, device, dtype, has_kernels=quantized_modules is not None)
        dtype = torch.float32
    if dtype is None:
        dtype = compute_dtype(checkpoint, device)
        if dtype != checkpoint:
            log.info("computing in %s: this CPU has no instructions for the checkpoint's %s", dtype, checkpoint)
    cls = _model_class(config)
    fill = fill_model if group is None else partial(fill_share, name, cls, group)
    if gguf is not None and quantized_modules is not None:
        model = load_gguf(gguf, cls, config, quantized_modules, fill)
    elif is_quantized and quantized_modules is not None:
        model = load_quantized(path, cls, config, quantized_modules, fill)
    else:
        check_plain(path)
        model = _from_safetensors(path, name, config, dtype, generates, group)
    model = model.eval().requires_grad_(False).to(device)
    num_probe_tokens = min(NUM_PROBE_TOKENS, max_model_len)
    probe = torch.arange(num_probe_tokens, device=device) * 7919 % config.get_text_config().vocab_size
    verdicts = verdicts or Verdicts()
    states = probe_states(config, model.get_input_embeddings().weight) if has_encoder(config) else None
    reference = torch.empty(0) if "passed" in verdicts else _reference_logits(model, config, name, probe, states)
    cross = None if states is None else attach_cross_attention(model, states)
    try:
        recurrent = attach_recurrent_layers(model)
    except UnknownStateError as error:
        why = f"the state that {error} keeps is not known"
        raise UnsupportedModelError(f"cannot serve {name} ({config.model_type}): {why}") from error
    attach_positions(model)
    attach_indexers(model)
    if keep_latents is not None:
        keep_latents(model, probe, verdicts)
    layers = verdicts.of("layers", lambda: observe_layers(model, config, name, probe, max_model_len, recurrent))
    if recurrent is not None:
        recurrent.shapes = dict(verdicts.of("recurrent layers", partial(dict, recurrent.shapes)))
        recurrent = recurrent if recurrent.shapes else None  # none of its modules was called
    switch_attention(model, ATTENTION_NAME)
    return LoadedModel(
        model=model,
        config=config,
        layers=layers,
        recurrent=recurrent,
        cross=cross,
        dtype=dtype,
        checkpoint_dtype=checkpoint,
        device=device,
        vocab_size=verdicts.of("vocab_size", lambda: reference.shape[-1]),
        num_position_axes=_num_position_axes(config),
        first_position=1 if config.model_type == "paligemma" else 0,
        is_quantized=is_quantized,
        picks_logits="logits_to_keep" in inspect.signature(type(model).forward).parameters
        or (cross is None and not is_multimodal(config)),
        probe_token_ids=probe,
        probe_logits=reference,
    )


def _from_safetensors(
    path: Path, name: str, config: PretrainedConfig, dtype: torch.dtype, generates: bool, group: RankGroup | None
) -> PreTrainedModel:
    try:
        if group is not None:
            model, info = load_share(path, name, _model_class(config), config, dtype, group)
        else:
            model, info = _model_class(config).from_pretrained(
                path,
                config=config,
                dtype=dtype,
                attn_implementation="eager",
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except (ImportError, OSError, RuntimeError, SafetensorError) as error:
        raise StartupError(f"cannot load {name}: {str(error).strip().splitlines()[0]}") from error
    # Models for embeddings are often saved without a head.
    check_loaded(info, path, is_needed=lambda key: generates or key.startswith(f"{model.base_model_prefix}."))
    return model


def _reference_logits(
    model: PreTrainedModel, config: PretrainedConfig, name: str, probe: torch.Tensor, states: torch.Tensor | None
) -> torch.Tensor:
    """[num_probe_tokens, vocab] of transformers' ordinary forward pass. Refuses language models that need their towers.

    states: [num_states, hidden_size] of an encoder, for a model with cross-attention.
    """
    encoded = {} if states is None else {"encoder_outputs": (states[None],)}
    with torch.inference_mode():
        try:
            return model(input_ids=probe[None], use_cache=False, **encoded).logits[0].clone()
        except (AttributeError, TypeError) as error:
            if not is_multimodal(config):
                raise
            why = f"its language model does not run without its towers ({error})"
            raise UnsupportedModelError(f"cannot serve {name} ({config.model_type}): {why}") from error


def _model_class(config: PretrainedConfig) -> Any:
    if not is_multimodal(config):
        cls = getattr(transformers, _name(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]))
        return decoder_only(cls) if has_encoder(config) else cls
    known = MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.get(config.model_type)
    return language_model_only(getattr(transformers, _name(known) if known else config.architectures[0]))


def _name(entry: str | tuple[str, ...]) -> str:
    return entry if isinstance(entry, str) else entry[0]


def _num_position_axes(config: PretrainedConfig) -> int:
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return 3 if "mrope_section" in rope else 0
