import gc
import weakref
from typing import Any

import torch
from torch import nn
from triptych_engine.runner.cpu.fused import CpuFusedKernels
from triptych_engine.runner.fusion.parallel import ParallelKernels
from triptych_engine.runner.parallel.modules import RowParallelLinear


class _OneOfTwo:
    """A rank whose partner computes the same."""

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        return 2 * partial


def test_a_packed_share_adds_up_and_does_not_hold_the_weight_it_was_packed_from() -> None:
    group: Any = _OneOfTwo()
    layer = RowParallelLinear(nn.Linear(32, 16, bias=False), group)
    x = torch.randn(3, 32)
    expected = layer(x).detach()
    weight = weakref.ref(layer.linear.weight)
    packed = ParallelKernels(CpuFusedKernels(None), None).pack(layer)
    del layer
    gc.collect()
    torch.testing.assert_close(packed(x), expected)
    assert weight() is None
