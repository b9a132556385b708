"""What a kind of device provides for models whose parts are recognised and replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from triptych_engine.runner.attention.paged import AttentionBackend, LayerShape
from triptych_engine.runner.fusion.rotary import CosSin, Rotary
from triptych_engine.runner.recurrent.layers import RecurrentLayers


class PackedLinear(nn.Module):
    """A linear layer whose weight is packed once, in a special layout. It can combine several layers; its output is then their
    outputs concatenated. See `FusedKernels.pack`."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features


@dataclass(frozen=True)
class MoEParts:
    """A mixture of experts that chooses by a softmax: a token's experts are those with the highest logits of the router.

    Attributes:
        router: [num_experts, hidden_size], and its bias [num_experts] or None.
        gate_up, down: [num_experts, 2 * inner, hidden_size], gate first, and [num_experts, hidden_size, inner].
        is_normalized: whether the shares of a token's experts add up to 1.
        activation: one of `FusedKernels.activations`.
    """

    router: torch.Tensor
    router_bias: torch.Tensor | None
    gate_up: torch.Tensor
    down: torch.Tensor
    top_k: int
    is_normalized: bool
    activation: str


class FusedMoE(nn.Module):
    """The router of a mixture and its experts, see `FusedKernels.moe`. x: [..., hidden_size]; the result is like x."""


@dataclass(frozen=True)
class Norm:
    """An RMS norm: x / rms(x) * weight. weight: [size] fp32."""

    weight: torch.Tensor
    eps: float


@dataclass(frozen=True)
class AttentionParts:
    """The attention of a decoder layer.

    Attributes:
        has_gate: whether the attention's output is multiplied by the sigmoid of a gate, [num_q_heads, head_dim]. The input product
            has each head's behind its query.
        is_rotated: whether queries and keys are.
        qk_norms: weights [head_dim] fp32 of queries' and keys' norms, and their epsilon; None for none.
        options: options of the attention backend's `forward`.
    """

    num_q_heads: int
    cache_shape: LayerShape
    qk_norms: tuple[torch.Tensor, torch.Tensor, float] | None
    options: dict[str, Any]
    has_gate: bool
    is_rotated: bool


@dataclass(frozen=True)
class RecurrenceParts:
    """A recurrence and its norm: a gated delta rule, or Mamba-2.

    Attributes:
        decay_rates, decay_bias: [num_heads] fp32.
        norm: of each head's output, [value_dim], before the gate; of Mamba-2 of all heads' together, [num_heads * value_dim],
            behind the gate.
        skip: [num_heads] fp32 of Mamba-2; None of a delta rule.
    """

    decay_rates: torch.Tensor
    decay_bias: torch.Tensor
    norm: Norm
    num_key_heads: int
    num_heads: int
    key_dim: int
    value_dim: int
    skip: torch.Tensor | None = None


@dataclass(frozen=True)
class RecurrentParts:
    """What is recurrent in the place of an attention: a short convolution, between two gates or before a recurrence.

    Attributes:
        layers: keep its states.
        number: of the module among those with states.
        weight, bias: of the convolution, [channels, width + 1], and [channels] or None.
        recurrence: None if the convolution is between two gates.
    """

    layers: RecurrentLayers
    number: int
    weight: torch.Tensor
    bias: torch.Tensor | None
    recurrence: RecurrenceParts | None = None


@dataclass(frozen=True)
class LayerParts:
    """A decoder layer of the common kind.

    Attributes:
        index: of the layer in the model.
        norms: before the attention and before the MLP.
        post_norms: of what attention and MLP return, before it is added to the residual stream; None for none.
        mixer: an attention, or what is in its place.
        products: input product of the mixer (such as q/k/v concatenated), output; of a gated MLP also gate and up, down.
        activation: of a gated MLP, one of `FusedKernels.activations`.
        moe: the mixture of experts that a layer has in place of a gated MLP.
        residual_scale: what attention and MLP return is multiplied by it, before it is added to the residual stream.
        ranks: address of what adds up the outputs of the second and the fourth product, of ranks that have shares of the layer;
            None if it is whole.
    """

    index: int
    norms: tuple[Norm, Norm]
    post_norms: tuple[Norm, Norm] | None
    mixer: AttentionParts | RecurrentParts
    products: tuple[PackedLinear, ...]
    activation: str
    moe: FusedMoE | None
    residual_scale: float
    ranks: int | None = None


class LayerStack(Protocol):
    """Layers that are computed in one call; each one gets the result of the previous one."""

    def compute(self, backend: Any, x: torch.Tensor, rotations: Sequence[CosSin | None]) -> torch.Tensor:
        """x: [num_tokens, hidden_size] fp32, dense. The result is like x.

        Args:
            backend: one that `FusedKernels.attends_with` accepts.
            rotations: of each layer; all the same unless `FusedKernels.rotates_by_layer`. None for those that rotate nothing.
        """
        ...


class WholeLayer(LayerStack, Protocol):
    """A decoder layer that the kernels compute as a whole."""


class WholeModel(Protocol):
    """A decoder that the kernels compute as a whole."""

    def takes(self, position_ids: torch.Tensor) -> bool:
        """Whether it can compute a step with these position ids."""
        ...

    def logits(
        self,
        backend: Any,
        token_ids: torch.Tensor,
        position_ids: torch.Tensor,
        inputs_embeds: torch.Tensor | None,
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        """[n, vocab_size] fp32. Arguments as of `WholeDecoder.logits`."""
        ...


#: (x, gate, weight, eps, gates_first) -> x / rms(x) * weight * silu(gate) over the last dimension, or, if the gate comes first, the
#: norm of x * silu(gate); weight fp32, the others of one dtype.
GatedRMSNorm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float, bool], torch.Tensor]


class FusedKernels(Protocol):
    """The kernels of one kind of device."""

    #: Whether it computes more than products.
    fuses: bool
    #: Whether layers of a stack may have rotary embeddings of their own.
    rotates_by_layer: bool
    #: Names of the activations that `act_mul` knows: "silu"; "gelu_tanh", which is GELU approximated by tanh.
    activations: Sequence[str]
    #: None if there is no such kernel.
    gated_rms_norm: GatedRMSNorm | None

    def computes(self, dtype: torch.dtype) -> bool:
        """Whether models of this dtype can use them."""
        ...

    def takes(self, linears: Sequence[nn.Module | None]) -> bool:
        """Whether `pack` takes these layers together."""
        ...

    def pack(self, *linears: Any) -> PackedLinear:
        """Combine linear layers into one, in the layout that is fastest here; either all or none have a bias."""
        ...

    def experts(self, experts: nn.Module) -> nn.Module | None:
        """What takes the place of a module with a layer's experts, and has their weights from then on. None if there is nothing
        faster, or if it would compute something else."""
        ...

    def moe(self, parts: MoEParts) -> FusedMoE | None:
        """A mixture of experts with its router; None if there is nothing faster."""
        ...

    def head(self, linear: nn.Module) -> nn.Module | None:
        """The output head with float32 logits; None if it is packed like other layers, or is packed already."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
        """x / rms(x) * weight over the last dimension; weight fp32, result of `dtype`."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of x (fp32) and `added` in fp32; and its RMS norm times weight (fp32), in the dtype of `added`.

        x, added: [rows, size], dense.
        """
        ...

    def qk_norm_rope(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        num_q_heads: int,
        num_kv_heads: int,
        head_dim: int,
        norms: tuple[torch.Tensor, torch.Tensor, float] | None,
    ) -> torch.Tensor:
        """Queries and keys, normalised if `norms` are given, and rotated (rotary embedding by halves).

        Returns [rows, num_q_heads + num_kv_heads, head_dim].

        Args:
            qkv: [rows, (num_q_heads + num_kv_heads) * head_dim + ...], dense.
            cos, sin: [rows, rotary_dim] fp32, dense; dimensions of a head beyond rotary_dim are not rotated.
            norms: [head_dim] fp32 weights of the RMS norm of queries and of keys, and its epsilon; None for no norm.
        """
        ...

    def act_mul(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """activation(first half) * second half over the last dimension; [..., 2 * size] -> [..., size]."""
        ...

    def whole_layer(self, parts: LayerParts) -> WholeLayer | None:
        """The layer as a whole; None if the kernels do not compute all of its parts."""
        ...

    def can_stack(self, layers: Sequence[Any]) -> bool:
        """Whether whole layers can be computed in one call."""
        ...

    def stack(self, layers: Sequence[Any]) -> LayerStack:
        """Whole layers in one call, see `can_stack`."""
        ...

    def whole_model(
        self,
        stack: Any,
        embedding: nn.Module,
        rotary: tuple[Rotary, torch.Tensor, torch.Tensor],
        norm: nn.Module,
        head: nn.Module,
        embedding_scale: float,
    ) -> WholeModel | None:
        """All parts of a decoder in one call; None if the kernels do not compute all of them.

        Args:
            stack: its layers, as `stack` has returned them.
            rotary: the rotary embedding; the embedding of a token, [1, 1, hidden_size]; and position ids of the model's form,
                spread over the whole context.
            embedding_scale: the embedding's result is multiplied by it.
        """
        ...

    def attention(self) -> AttentionBackend:
        """A backend with which whole layers can be tried."""
        ...

    def attends_with(self, backend: AttentionBackend) -> bool:
        """Whether whole layers can be computed on this backend's cache."""
        ...
