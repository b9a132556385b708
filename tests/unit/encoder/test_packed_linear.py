"""Packed linear layers give what nn.Linear gives, to the rounding of bfloat16, wherever they are used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.builders.media import a_picture, a_sound_file, an_image_file
from support.builders.multimodal import FAMILIES, build_checkpoint
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from triptych.v1 import common_pb2
from triptych_common.host import cpu
from triptych_common.media.limits import MediaLimits
from triptych_encoder.media.preprocess import Preprocessor
from triptych_encoder.tower import loading
from triptych_encoder.tower.packed_linear import PackedLinear, compute_dtype, pack_linears
from triptych_encoder.tower.tower import Tower

LIMITS = MediaLimits(1 << 25, 1 << 26, 600, 600, 1 << 28)


needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU does not compute in bfloat16"
)


class _Model(PreTrainedModel):
    """Not PreTrainedModel itself: transformers keeps what it finds out about a class on it, for all that inherit from it."""


def a_model_of(mlp: nn.Module) -> PreTrainedModel:
    model = _Model(PretrainedConfig())
    model.mlp = mlp
    return model


@needs_bfloat16
@pytest.mark.parametrize("shape", [(1, 48), (7, 48), (300, 48), (2, 5, 48)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_is_the_layer(shape: tuple[int, ...], bias: bool) -> None:
    linear = nn.Linear(48, 80, bias=bias).bfloat16()
    x = torch.randn(shape).bfloat16()
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(linear)(x), linear(x), atol=2e-2, rtol=2e-2)


class ClipMlp(nn.Module):
    """As CLIP and SigLIP have it."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation_fn, self.fc1, self.fc2 = activation, nn.Linear(48, 96), nn.Linear(96, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.activation_fn(self.fc1(x)))


class OtherMlp(ClipMlp):
    """Parts of the same names, put together in another way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.activation_fn(self.fc1(x)) + self.fc1(x))


@needs_bfloat16
@pytest.mark.parametrize(
    ("mlp", "is_joined"),
    [
        (ClipMlp(nn.GELU()), True),
        (ClipMlp(nn.GELU(approximate="tanh")), True),
        (ClipMlp(ACT2FN["gelu_pytorch_tanh"]), True),
        (ClipMlp(ACT2FN["quick_gelu"]), False),
        (ClipMlp(nn.ReLU()), False),
        (OtherMlp(nn.GELU()), False),
    ],
    ids=lambda value: (
        f"{type(value).__name__}-{type(value.activation_fn).__name__}" if isinstance(value, nn.Module) else str(value)
    ),
)
def test_a_gelu_goes_into_the_product_before_it(mlp: ClipMlp, is_joined: bool) -> None:
    model = a_model_of(mlp)
    x = torch.randn(3, 7, 48)
    with torch.inference_mode():
        exact = mlp.float()(x)
        model.bfloat16()
        rounded = mlp(x.bfloat16())
        assert pack_linears(model) == 2
        got = mlp(x.bfloat16())
    assert isinstance(mlp.activation_fn, nn.Identity) is is_joined
    assert (got - exact).norm() <= 1.05 * (rounded - exact).norm()


def test_what_the_cpu_would_emulate_is_computed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    host, gpu = torch.device("cpu"), torch.device("cuda")
    for has_bf16 in (True, False):
        monkeypatch.setattr(cpu, "computes_bfloat16", lambda has_bf16=has_bf16: has_bf16)
        assert compute_dtype(torch.bfloat16, host) == (torch.bfloat16 if has_bf16 else torch.float32)
        assert compute_dtype(torch.float16, host) == compute_dtype(torch.float32, host) == torch.float32
        assert compute_dtype(torch.float16, gpu) == torch.float16


@pytest.mark.model
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_towers_agree_with_float32_ones(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Wherever this runs: as if the CPU had the instructions.
    monkeypatch.setattr(cpu, "computes_bfloat16", lambda: True)
    path = build_checkpoint(family, tmp_path / family)
    config = loading.load_config(path, family)
    embeds = {}
    for dtype in (torch.float32, torch.bfloat16):
        towers = loading.load_towers(path, family, config, dtype=dtype, device=torch.device("cpu"))
        tower, preprocessor = Tower(towers.model, towers.device, towers.dtype, dtype), Preprocessor(path, config, LIMITS)
        modality = preprocessor.load()[0]
        file = an_image_file("PNG", a_picture()) if modality == common_pb2.MODALITY_IMAGE else a_sound_file()
        [result] = tower.encode([preprocessor.prepare(modality, file, {}).item])
        assert result["embeds"].dtype == dtype
        embeds[dtype] = result["embeds"].float()
    similarity = torch.nn.functional.cosine_similarity(*embeds.values(), dim=-1)
    assert similarity.min() > 0.99
