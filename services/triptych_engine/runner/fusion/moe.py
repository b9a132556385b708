"""Recognises mixtures of experts that a device's kernels compute together with their router."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import nn

from triptych_engine.runner.fusion.kernels import FusedKernels, FusedMoE, MoEParts
from triptych_engine.runner.fusion.modules import activation_name
from triptych_engine.runner.fusion.recognition import TOLERANCE, is_close
from triptych_engine.runner.quantization.experts import ExpertsShape, Gated, activation_of
from triptych_engine.runner.verdicts import Verdicts

log = logging.getLogger(__name__)
#: Scales of the tokens on which a mixture is compared, and how many an expert has on average: kernels have other tiles for more.
#: With small ones, all experts have about the same share, which shows whether the chosen ones' are normalised. 0: one token.
_TRIALS = ((0.01, 2), (1, 2), (10, 12), (100, 24), (1, 0))


def fused_moe(module: nn.Module, module_name: str, kernels: FusedKernels, verdicts: Verdicts) -> FusedMoE | None:
    """What takes the place of a mixture, with its weights; None if it is of another kind, or if there is nothing faster."""
    parts = _parts_of(module)
    if parts is None or parts.activation not in kernels.activations or kernels.moe(parts) is None:
        return None

    def find() -> bool | None:
        """Whether shares are normalised; None if it computes something else in either case."""
        for is_normalized in (True, False):
            own = replace(parts, is_normalized=is_normalized)
            fused = kernels.moe(own)
            if fused is not None and _computes_the_same(module, fused, own):
                return is_normalized
        return None

    is_normalized = verdicts.of(("mixture", module_name), find)
    return None if is_normalized is None else kernels.moe(replace(parts, is_normalized=is_normalized))


def _parts_of(module: nn.Module) -> MoEParts | None:
    """The parts of a module that has experts and their router, and nothing else."""
    children = dict(module.named_children())
    experts, router = children.get("experts"), children.get("gate", children.get("router"))
    if len(children) != 2 or experts is None or router is None:
        return None
    shape, activation, top_k = ExpertsShape.of(experts), activation_of(experts), _top_k(router, module)
    if shape is None or not isinstance(activation, Gated) or top_k is None:
        return None
    chosen_by, of_experts = router.state_dict(), experts.state_dict()
    if not {"weight"} <= chosen_by.keys() <= {"weight", "bias"} or of_experts.keys() != {"gate_up_proj", "down_proj"}:
        return None
    weight, gate_up, down = chosen_by["weight"], of_experts["gate_up_proj"], of_experts["down_proj"]
    if weight.shape != (shape.num_experts, shape.hidden) or gate_up.shape != (shape.num_experts, 2 * shape.inner, shape.hidden):
        return None
    if len({one.dtype for one in (weight, gate_up, down)}) > 1 or not all(one.is_contiguous() for one in (weight, gate_up, down)):
        return None
    name = activation_name(activation.act_fn)
    return None if name is None else MoEParts(weight, chosen_by.get("bias"), gate_up, down, top_k, False, name)


def _top_k(*modules: nn.Module) -> int | None:
    found = [getattr(module, "top_k", None) for module in modules]
    return next((top_k for top_k in found if isinstance(top_k, int)), None)


@torch.inference_mode()
def _computes_the_same(module: nn.Module, fused: FusedMoE, parts: MoEParts) -> bool:
    """Whether a mixture and its replacement agree on random tokens, small and large, few and many for each expert.

    Where the last of a token's experts and the next one have equal logits, as is common in 16 bits, either may be chosen: such a
    token is not compared.
    """
    num_experts, hidden = parts.router.shape
    generator = torch.Generator().manual_seed(0)
    num_compared = 0
    for scale, tokens_of_expert in _TRIALS:
        num_tokens = max(1, -(-tokens_of_expert * num_experts // parts.top_k))
        x = (scale * torch.randn(1, num_tokens, hidden, generator=generator)).to(parts.router)
        try:
            expected, got = module(x), fused(x)
        except Exception as error:  # the family's own code, which may want other arguments
            log.warning("%s keeps its own code: %s", type(module).__name__, error)
            return False
        if not isinstance(expected, torch.Tensor) or expected.shape != x.shape:
            return False
        compared = expected[0].isfinite().all(-1)
        if parts.top_k < num_experts:
            logits = nn.functional.linear(x[0], parts.router, parts.router_bias)
            last, following = logits.sort(-1, descending=True).values[:, parts.top_k - 1 : parts.top_k + 1].T
            compared &= last > following
        if not is_close(expected[0, compared].float(), got[0, compared].float(), TOLERANCE[x.dtype]):
            return False
        num_compared += int(compared.sum())
    return num_compared > 0
