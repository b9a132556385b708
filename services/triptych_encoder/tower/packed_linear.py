"""Fast linear layers on CPUs: a dtype with CPU instructions, weights in oneDNN's own layout, fused activations."""

from __future__ import annotations

import logging

import torch
from torch import nn
from transformers import PreTrainedModel
from triptych_common.host import cpu

log = logging.getLogger(__name__)
#: The number of rows that the layout is optimized for: about the patches of one image. It works with any number.
_PACK_FOR_ROWS = 256


class PackedLinear(nn.Module):
    """nn.Linear whose weight is packed once instead of at each call. x: [..., in_features], same dtype as the weight."""

    #: oneDNN's names of a fused activation and its algorithm. The activation is computed before the sums are rounded.
    epilogue = ("none", "")

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # Modeling code reads the dtype from its layers.
        self.register_buffer("weight", torch.empty(0, dtype=linear.weight.dtype), persistent=False)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.data, _PACK_FOR_ROWS)
        self._bias = None if linear.bias is None else linear.bias.data

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        name, algorithm = self.epilogue
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, name, [], algorithm)


def compute_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The compute dtype for embeddings of `dtype`: float32 on a CPU that would have to emulate `dtype`."""
    if device.type != "cpu" or (cpu.computes_bfloat16() and dtype == torch.bfloat16):
        return dtype
    return torch.float32


def pack_linears(model: PreTrainedModel) -> int:
    """Replace the linear layers of a bfloat16 model on a CPU that computes in bfloat16. Returns their number; 0 anywhere else.

    Two kinds stay unchanged: subclasses of nn.Linear, which may compute something else, and layers whose parent reads their weights
    directly (`nn.MultiheadAttention`).
    """
    is_packable = model.dtype == torch.bfloat16 and model.device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if not is_packable:
        return 0
    num_packed = 0
    for parent in list(model.modules()):
        if isinstance(parent, nn.MultiheadAttention):
            continue
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child))
                num_packed += 1
    num_joined = sum(_join_gelu(module) for module in model.modules())
    log.info("packed %d linear layers for this CPU, %d of them with their activation", num_packed, num_joined)
    return num_packed


@torch.inference_mode()
def _join_gelu(mlp: nn.Module) -> bool:
    """Fuse the GELU of an MLP into its first linear layer. A separate GELU passes over a tower's widest rows, slowly in bfloat16.

    The MLP is recognized by the names that CLIP uses for its parts. The fused version is tried, and undone if the result differs.
    """
    parts = dict(mlp.named_children())
    first, activation = parts.get("fc1"), parts.get("activation_fn")
    if set(parts) != {"fc1", "activation_fn", "fc2"} or not isinstance(first, PackedLinear) or activation is None:
        return False
    algorithm = _gelu_algorithm(activation)
    if algorithm is None:
        return False
    x = torch.linspace(-2, 2, 4 * first.in_features).bfloat16().view(1, 4, -1)
    expected = mlp(x)
    first.epilogue, mlp.activation_fn = ("gelu", algorithm), nn.Identity()
    if torch.allclose(mlp(x), expected, rtol=5e-2, atol=2e-2 * expected.abs().max().item()):
        return True
    first.epilogue, mlp.activation_fn = PackedLinear.epilogue, activation
    return False


def _gelu_algorithm(activation: nn.Module) -> str | None:
    """oneDNN's name of the GELU algorithm that a module computes; None if the module computes something else."""
    x = torch.linspace(-8, 8, 1000)
    for algorithm in ("none", "tanh"):
        if torch.allclose(activation(x), nn.functional.gelu(x, approximate=algorithm), rtol=1e-5, atol=1e-6):
            return algorithm
    return None
