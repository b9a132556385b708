"""Makes an encoder faster on a CPU. It works by pattern, for any architecture.

Weights are packed once, the projections of queries, keys and values are one product, and GELU is a part of the product before it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from transformers.activations import GELUActivation

from triptych_engine.runner.cpu.linear.layers import OneDnnLinear
from triptych_engine.runner.fusion.kernels import PackedLinear
from triptych_engine.runner.fusion.modules import LinearPart, SharedProduct
from triptych_engine.runner.pooling.encoder_model import EncoderModel

#: Names of the projections of queries, keys and values.
_PROJECTIONS = (("query", "key", "value"), ("q_lin", "k_lin", "v_lin"), ("q_proj", "k_proj", "v_proj"), ("q", "k", "v"))


class GeluLinear(PackedLinear):
    """gelu(linear(x)) in one product. x: [..., in_features] of the weight's dtype."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.data, _PACK_FOR_ROWS)
        self._bias = None if linear.bias is None else linear.bias.data

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "gelu", [], "none")


#: Number of rows for which oneDNN chooses the layout of packed weights.
_PACK_FOR_ROWS = 512


def optimize_encoder(model: EncoderModel, device: torch.device) -> None:
    """Replace modules of the model, in place. Does nothing on other devices than a CPU, or where torch lacks oneDNN."""
    base = model.base
    if device.type != "cpu" or not torch.backends.mkldnn.is_available() or base.dtype != torch.float32:
        return
    for module in list(base.modules()):
        _share_projections(module)
        _fuse_gelu(module)
    for module in list(base.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, OneDnnLinear(child.weight.data, child.bias))
            elif type(child) is nn.Dropout:
                setattr(module, name, nn.Identity())


def _share_projections(module: nn.Module) -> None:
    for names in _PROJECTIONS:
        linears = [child for name in names if type(child := getattr(module, name, None)) is nn.Linear]
        if len(linears) == 3 and len({(linear.in_features, linear.bias is None) for linear in linears}) == 1:
            product = SharedProduct(linears, _pack)
            for index, name in enumerate(names):
                setattr(module, name, LinearPart(product, index))


def _pack(*linears: nn.Linear) -> PackedLinear:
    weight = torch.cat([linear.weight.data for linear in linears])
    return OneDnnLinear(weight, None if linears[0].bias is None else torch.cat([linear.bias.data for linear in linears]))


def _fuse_gelu(module: nn.Module) -> None:
    """BERT's `intermediate`: a linear layer `dense`, then the activation."""
    dense, activation = getattr(module, "dense", None), getattr(module, "intermediate_act_fn", None)
    if type(dense) is nn.Linear and isinstance(activation, (GELUActivation, nn.GELU)) and _is_exact(activation):
        module.dense, module.intermediate_act_fn = GeluLinear(dense), nn.Identity()


def _is_exact(activation: nn.Module) -> bool:
    x = torch.from_numpy(np.linspace(-6, 6, 97, dtype=np.float32))
    return torch.allclose(activation(x), nn.functional.gelu(x), atol=1e-7)
