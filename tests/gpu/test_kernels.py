"""The Triton kernels on a GPU. The same cases run under Triton's interpreter in tests/unit/engine/cuda."""

from __future__ import annotations

import pytest
import torch
from support.drivers.attention import worst_difference
from support.drivers.gpu_layers import a_moe, check_layer_kernels, check_moe
from triptych_engine.runner.attention.paged import LayerShape
from triptych_engine.runner.attention.plain import TorchAttention
from triptych_engine.runner.backends import choose_backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = torch.device("cuda")
SINKS = torch.linspace(-1, 1, 8).to("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("num_q_heads", "shape", "options"),
    [
        (32, LayerShape(8, 64, 64), {}),
        (16, LayerShape(16, 128, 128), {}),
        (8, LayerShape(1, 256, 256), {}),
        (14, LayerShape(2, 64, 64), {}),
        (16, LayerShape(2, 192, 128), {}),
        (4, LayerShape(2, 512, 512), {}),
        (64, LayerShape(1, 80, 80), {}),
        (32, LayerShape(4, 128, 128), {"window": 100}),
        (8, LayerShape(2, 64, 64), {"softcap": 30.0}),
        (
            8,
            LayerShape(2, 64, 64),
            {"window": 40, "sinks": SINKS},
        ),
        (8, LayerShape(2, 64, 64), {"span": 7}),
    ],
)
def test_attention_matches_plain_torch(dtype: torch.dtype, num_q_heads: int, shape: LayerShape, options: dict):
    from triptych_engine.runner.cuda.attention import CudaAttention

    backends = [CudaAttention(DEVICE), TorchAttention(DEVICE)]
    steps = [[20, 1300, 0, 257], [16, 70, 5, 1], [1, 0, 1, 1], [1, 1, 1, 1]]
    worst = worst_difference(
        backends, shape=shape, num_q_heads=num_q_heads, dtype=dtype, steps=steps, device="cuda", **options
    )  # fmt: skip
    assert worst < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_layer_kernels_match_plain_torch(dtype: torch.dtype):
    from triptych_engine.runner.cuda.fused import CudaFusedKernels

    check_layer_kernels(CudaFusedKernels(DEVICE), DEVICE, dtype, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("num_tokens", [1, 40, 700])
def test_mixtures_match_plain_torch(num_tokens: int, dtype: torch.dtype):
    from triptych_engine.runner.cuda.fused import CudaFusedKernels

    parts = a_moe(DEVICE, dtype, num_experts=24, top_k=6, hidden=1000, inner=264)
    check_moe(CudaFusedKernels(DEVICE), parts, num_tokens, TOLERANCE[dtype])


def test_they_are_chosen():
    for shape in (LayerShape(2, 64, 64), LayerShape(2, 128, 128), LayerShape(1, 256, 256)):
        assert choose_backend("auto", DEVICE, {0: shape}, 16, torch.bfloat16, None).name == "cuda"
