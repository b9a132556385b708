"""What must not be taken for something that it only resembles."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import GraniteMoeHybridRMSNormGated
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNormGated
from triptych_engine.runner.cpu.fused import CpuFusedKernels
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.fusion.modules import FusedGatedRMSNorm
from triptych_engine.runner.fusion.optimize import _fused_gated_norm, _read_weights


def a_gated_norm(norm: nn.Module, dtype: torch.dtype) -> FusedGatedRMSNorm | None:
    norm = norm.to(dtype).requires_grad_(False)
    torch.manual_seed(0)
    nn.init.normal_(norm.weight, mean=1.0, std=0.3)  # type: ignore[arg-type]
    return _fused_gated_norm(norm, CpuFusedKernels(load_kernels()))  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [64, 1024, 8192])
def test_gated_norms_are_told_apart(size: int, dtype: torch.dtype):
    gates_first = a_gated_norm(GraniteMoeHybridRMSNormGated(size, size), dtype)
    assert gates_first is not None
    assert gates_first.gates_first
    gates_last = a_gated_norm(Qwen3_5RMSNormGated(size), dtype)
    assert gates_last is not None
    assert not gates_last.gates_first
    for groups in (2, 8):
        assert a_gated_norm(GraniteMoeHybridRMSNormGated(size, size // groups), dtype) is None


class Reader(nn.Module):
    """Of weights of its parts."""

    def forward(self, x):
        if self.training and x.numel():
            x = x * self.only_trained.weight
        elif x.numel():
            x = x * self.otherwise.weight
        if self.training or x.numel():
            x = x * self.either.weight
        return self.called(x) * self.always.weight


class Outdented(nn.Module):
    def forward(self, x):
        text = """
less indented"""
        return x * self.always.weight * len(text)


def test_weights_that_a_module_reads_itself():
    assert _read_weights(Reader.forward) == {"otherwise", "either", "always"}
    assert _read_weights(Outdented.forward) == {"always"}
    assert _read_weights(len) == frozenset()
