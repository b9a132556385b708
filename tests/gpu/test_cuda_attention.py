"""The GPU backend with torch's own kernel."""

from __future__ import annotations

import pytest
import torch
from support.drivers.attention import worst_difference
from triptych_engine.runner.attention.paged import LayerShape, TorchAttention
from triptych_engine.runner.backends import try_kernel
from triptych_engine.runner.cuda.attention import CudaAttention
from triptych_engine.runner.cuda.varlen import find_varlen_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="varlen_attn has no kernel for CPUs"),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("num_q_heads", "shape", "options"),
    [
        (32, LayerShape(8, 64, 64), {}),
        (16, LayerShape(16, 128, 128), {}),
        (8, LayerShape(1, 256, 256), {}),
        (32, LayerShape(4, 128, 128), {"window": 100}),
        (8, LayerShape(2, 64, 64), {"softcap": 30.0}),
        (8, LayerShape(2, 64, 64), {"span": 7}),
    ],
)
def test_it_matches_plain_torch(dtype: torch.dtype, num_q_heads: int, shape: LayerShape, options: dict):
    device = torch.device("cuda")
    backends = [CudaAttention(device, find_varlen_kernel(device)), TorchAttention(device)]
    steps = [[20, 1300, 0, 257], [16, 70, 5, 1], [1, 0, 1, 1], [1, 1, 1, 1]]
    worst = worst_difference(
        backends, shape=shape, num_q_heads=num_q_heads, dtype=dtype, steps=steps, block_size=256, device="cuda", **options
    )
    assert worst < 2e-2


def test_the_kernel_passes_its_trial():
    device = torch.device("cuda")
    for dim in (64, 128, 256):
        try_kernel(find_varlen_kernel(device), device, LayerShape(2, dim, dim), 256, torch.bfloat16)
