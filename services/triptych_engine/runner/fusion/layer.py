"""A decoder layer of the common kind (Llama's; or LFM2's, Qwen3.5's and Granite 4's, some of which are recurrent) as four matrix
products and a few kernels between them, instead of about forty torch calls; or as a whole, if the device's kernels compute all of
its parts.

With few rows, most of a step's time is the overhead of calls, not computation. Whether a layer is of the common kind does not
depend on its class. A layer whose parts have the same names as Llama's is run next to its replacement on a real input. It is
replaced if both pass the same queries, keys and values to the attention and return the same hidden states.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from triptych_engine.runner.attention.paged import AttentionBackend, AttentionMetadata, LayerShape, attending, current_backend
from triptych_engine.runner.fusion.calls import AttentionRecorder, ModuleCall, recorded_calls
from triptych_engine.runner.fusion.kernels import AttentionParts, FusedKernels, FusedMoE, LayerParts, PackedLinear, WholeLayer
from triptych_engine.runner.fusion.mixers import Mixer, mixer_name, mixer_of
from triptych_engine.runner.fusion.modules import FusedRMSNorm, GatedMLP
from triptych_engine.runner.fusion.recognition import (
    STREAM_TOLERANCE,
    TOLERANCE,
    consists_of,
    is_close,
    layer_names,
    replace_layers,
)
from triptych_engine.runner.fusion.rotary import RotaryTables
from triptych_engine.runner.verdicts import Verdicts

log = logging.getLogger(__name__)
#: Additional difference with quantised inputs: a tiny difference can change to which 8-bit value a number is rounded.
_QUANT_TOLERANCE = 2e-2
#: Block size of the KV cache in which a layer is verified.
TRIAL_BLOCK_SIZE = 16


class FusedDecoderLayer(nn.Module):
    """norm, input product, attention or what is in its place, output product, add and norm, gated MLP or mixture of experts, add.
    Some families also normalise what attention and MLP return.

    Args:
        layer: a layer whose parts are already replaced (see `optimize`).
        tables: shared by all layers.
    """

    def __init__(self, layer: nn.Module, mixer: Mixer, kernels: FusedKernels, tables: RotaryTables) -> None:
        super().__init__()
        names = layer_names(layer)
        self._kernels, self._mixer, self._mlp_name = kernels, mixer, names.mlp
        self._norms: list[FusedRMSNorm] = [getattr(layer, name) for name in names.norms]
        self._in, self._out = mixer.products
        self._residual_scale = float(getattr(layer, "residual_multiplier", 1.0))
        self._mlp: Any = getattr(layer, names.mlp)
        self.index, self.dtype, self.tables = mixer.index, mixer.dtype, tables
        #: The layer as a whole, if the kernels compute it.
        self.kernel: WholeLayer | None = None
        self.join()
        if hasattr(layer, "attention_type"):  # the model reads it to choose a mask
            self.attention_type = layer.attention_type

    def forward(self, hidden_states: torch.Tensor, *, position_embeddings: Any = None, **ignored: Any) -> torch.Tensor:
        """hidden_states: [1, num_tokens, hidden_size] fp32; position_embeddings: cos and sin, [1, num_tokens, rotary_dim], if
        its attention rotates."""
        backend = current_backend()
        x = hidden_states[0].contiguous()
        rotation = None if position_embeddings is None else self.tables.dense(position_embeddings)
        if self.kernel is not None and self._kernels.attends_with(backend):
            return self.kernel.compute(backend, x, [rotation])[None]
        norm, mlp_norm, *post_norms = self._norms
        added = self._out(self._mixer.mix(self._in(norm(x)), rotation))
        if post_norms:
            added = post_norms[0](added)
        if self._residual_scale != 1:
            added = added * self._residual_scale
        x, normed = self._kernels.add_rms_norm(x, added, mlp_norm.scale, mlp_norm.eps)
        added = self._mlp(normed)
        return x.add_(post_norms[1](added) if post_norms else added, alpha=self._residual_scale)[None]

    def linears(self) -> list[tuple[int, PackedLinear, dict[str, int]]]:
        """Its products but those of experts: the number of the first linear layer of each, where the input product has up to four
        (q, k, v), then output, gate, up, down; and name and number of outputs of each of its layers."""
        names, out_names = self._mixer.linears
        linears = [(0, self._in, names), (4, self._out, out_names)]
        if isinstance(self._mlp, GatedMLP):
            products = self._mlp.gate_up, self._mlp.down
            for place, product, sizes in zip((5, 7), products, self._mlp.linears, strict=True):
                linears.append((place, product, {f"{self._mlp_name}.{name}": size for name, size in sizes.items()}))
        return linears

    @property
    def cache_shape(self) -> LayerShape | None:
        """What it stores per token; None for a layer without an attention."""
        parts = self._mixer.parts
        return parts.cache_shape if isinstance(parts, AttentionParts) else None

    @torch.inference_mode()
    def is_whole(self, hidden_states: torch.Tensor, position_embeddings: Any, dtype: torch.dtype, extra: float = 0.0) -> bool:
        """Whether the layer as a whole computes the same as the parts, with few and many tokens, with a cache of this dtype.

        extra: additional tolerance, relative to the typical value, besides that for rounding to the dtype.
        """
        whole, backend = self.kernel, trial_backend([self], self._kernels, hidden_states.shape[1], dtype)
        if whole is None or backend is None:  # another backend will be used, so the layer is computed in parts
            return False
        for num_tokens in (1, 6, hidden_states.shape[1]):
            inputs = hidden_states[:, :num_tokens]
            tables = position_embeddings
            if tables is not None:
                tables = tuple(table.reshape(1, -1, table.shape[-1])[:, :num_tokens] for table in tables)
            added = []
            for self.kernel in (None, whole):
                backend.begin(first_tokens(inputs.shape[1]))
                with attending(backend):
                    added.append(self(inputs, position_embeddings=tables) - inputs)
            # The parts round values between them to the model's dtype; the kernel does not.
            if not is_close(added[0], added[1], 4 * TOLERANCE[dtype] + extra, STREAM_TOLERANCE * inputs.abs()):
                log.warning("layer %d as a whole is not what its parts are; it is computed in parts", self.index)
                return False
        return True

    def join(self) -> None:
        """Compute the layer as a whole, if the kernels can, with the products as they are now."""
        moe = self._mlp if isinstance(self._mlp, FusedMoE) else None
        products = (self._in, self._out) if moe is not None else (self._in, self._out, self._mlp.gate_up, self._mlp.down)
        norm, mlp_norm, *post_norms = (one.norm for one in self._norms)
        parts = LayerParts(
            self.index, (norm, mlp_norm), (post_norms[0], post_norms[1]) if post_norms else None, self._mixer.parts, products,
            self._mlp.activation if moe is None else "", moe, self._residual_scale,
        )  # fmt: skip
        self.kernel = self._kernels.whole_layer(parts)


def fuse_layers(
    model: PreTrainedModel, token_ids: torch.Tensor, position_ids: torch.Tensor, kernels: FusedKernels, verdicts: Verdicts
) -> int:
    """Replace layers in place, where possible; returns how many.

    Args:
        token_ids: [num_tokens] of a prompt on which replacements are verified.
        position_ids: in the model's form, spread over the whole context: some attentions depend on the position.
        verdicts: of the same model, if it was loaded before in this process.
    """
    tables = RotaryTables()
    return replace_layers(model, token_ids, position_ids, _has_parts, lambda call: _fused(call, kernels, tables, verdicts))


def join_layers(model: PreTrainedModel, token_ids: torch.Tensor, position_ids: torch.Tensor, verdicts: Verdicts) -> None:
    """Make each fused layer a single kernel, after its products have been packed. Verify the kernels as `fuse_layers` does."""
    layers = [module for module in model.modules() if isinstance(module, FusedDecoderLayer)]
    calls, _ = recorded_calls(model, layers, token_ids, position_ids)
    for call in calls:
        layer = cast(FusedDecoderLayer, call.module)
        layer.join()
        given = call.input, call.position_embeddings, model.dtype, _QUANT_TOLERANCE
        has_kernel = verdicts.of(("has a quantised kernel", layer.index), functools.partial(bool, layer.kernel))
        if not has_kernel or not verdicts.of(("quantised kernel", layer.index), functools.partial(layer.is_whole, *given)):
            layer.kernel = None


def _has_parts(layer: nn.Module) -> bool:
    """Whether the layer has exactly the parts of the common kind, and all of them are replaced."""
    names = layer_names(layer)
    mixer = mixer_name(layer, names)
    wanted = {**dict.fromkeys(names.norms, FusedRMSNorm), names.mlp: (GatedMLP, FusedMoE)}
    return mixer is not None and consists_of(layer, wanted | {mixer: nn.Module})


def _fused(call: ModuleCall, kernels: FusedKernels, tables: RotaryTables, verdicts: Verdicts) -> FusedDecoderLayer | None:
    """The layer's replacement, if it computes the same on these inputs; else None."""
    hidden_states, cos = call.input, (call.position_embeddings or (None,))[0]
    if hidden_states.dtype != torch.float32 or (cos is not None and cos.numel() != hidden_states.shape[1] * cos.shape[-1]):
        return None
    mixer = mixer_of(call, layer_names(call.module), kernels)
    if mixer is None or not isinstance(call.output, torch.Tensor):
        return None
    fused = FusedDecoderLayer(call.module, mixer, kernels, tables)
    if not verdicts.of(("layer", fused.index), lambda: _computes_the_same(fused, call)):
        return None
    # Asked first: a rank without a kernel would not take part in what the others compute to compare theirs.
    has_kernel = verdicts.of(("has a kernel", fused.index), lambda: fused.kernel is not None)
    if not has_kernel or not verdicts.of(
        ("kernel", fused.index), lambda: fused.is_whole(hidden_states, call.position_embeddings, fused.dtype)
    ):
        fused.kernel = None
    return fused


@torch.inference_mode()
def _computes_the_same(fused: FusedDecoderLayer, call: ModuleCall) -> bool:
    """Whether a replacement passes on to the attention, if there is one, and returns, what the layer did."""
    recorder, tolerance = AttentionRecorder(), TOLERANCE[fused.dtype]
    with attending(recorder):  # type: ignore[arg-type]
        got = fused(*call.args, **call.kwargs)
    for wanted, own in zip(call.attention, recorder.calls, strict=True):
        pairs = [(wanted.query, own.query), (wanted.key, own.key), (wanted.value, own.value)]
        if not all(is_close(want.float(), have.float(), tolerance) for want, have in pairs):
            return False
    # Compare what the layer adds, not its output: next to a few huge channels of the stream, any difference would look small.
    stream = STREAM_TOLERANCE * call.input.abs()
    return is_close(call.output - call.input, got - call.input, tolerance, stream)


def trial_backend(
    layers: Sequence[FusedDecoderLayer], kernels: FusedKernels, num_tokens: int, dtype: torch.dtype
) -> AttentionBackend | None:
    """A backend with room for one sequence, whose cache has this dtype; None if it does not support the layers' shapes."""
    backend = kernels.attention()
    shapes = {layer.index: layer.cache_shape for layer in layers if layer.cache_shape is not None}
    try:
        backend.allocate(shapes, -(-num_tokens // TRIAL_BLOCK_SIZE), TRIAL_BLOCK_SIZE, dtype)
    except ValueError:
        return None
    return backend


def first_tokens(num_tokens: int) -> AttentionMetadata:
    """Metadata of a step with the first tokens of one sequence, in the first blocks of a cache."""
    positions = np.arange(num_tokens)
    return AttentionMetadata(
        query_start_loc=np.array([0, num_tokens], np.int32),
        seq_lens=np.array([num_tokens], np.int32),
        block_table=np.arange(-(-num_tokens // TRIAL_BLOCK_SIZE), dtype=np.int32)[None],
        slots=positions.astype(np.int64),
        positions=positions.astype(np.int32),
    )
