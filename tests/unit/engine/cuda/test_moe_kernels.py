"""Mixtures of experts in Triton's kernels, under its interpreter, and which mixtures are recognised."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import transformers
from support.builders.text_families import HEAD_16
from support.drivers.gpu_layers import a_moe, check_moe
from torch import nn
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock
from triptych_engine.runner.fusion.kernels import FusedMoE
from triptych_engine.runner.fusion.moe import fused_moe
from triptych_engine.runner.verdicts import Verdicts

pytest.importorskip("triton", minversion="3.7")  # the interpreter of 3.6 fails with NumPy 2.4
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton's interpreter is off on a machine with a GPU", allow_module_level=True)

from support.drivers.pretended_gpu import multiply_bfloat16
from triptych_engine.runner.cuda.fused import CudaFusedKernels

CPU = torch.device("cpu")
KERNELS = CudaFusedKernels(CPU)
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("num_tokens", "options"),
    [
        (1, {"num_experts": 7, "top_k": 3, "hidden": 72, "inner": 40}),  # four experts without a token
        (70, {"num_experts": 5, "top_k": 2, "hidden": 72, "inner": 88, "is_normalized": False, "activation": "gelu_tanh"}),
        (90, {"num_experts": 4, "top_k": 1, "hidden": 16, "inner": 16, "router_bias": torch.tensor([0.0, 9.0, 0.0, -9.0])}),
        (3, {"num_experts": 2, "top_k": 2, "hidden": 24, "inner": 8}),
    ],
    ids=["one token", "many tokens", "nearly all to one expert", "all experts"],
)
def test_they_match_plain_torch(num_tokens: int, options: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    multiply_bfloat16(monkeypatch)
    if "router_bias" in options:
        options = options | {"router_bias": options["router_bias"].to(dtype)}
    check_moe(KERNELS, a_moe(CPU, dtype, **options), num_tokens, TOLERANCE[dtype])


def test_the_order_of_the_tokens_changes_no_bit():
    """On a GPU, the pairs of an expert stand in its list in the order in which programs arrive."""
    moe = KERNELS.moe(a_moe(CPU, torch.float32, num_experts=3, top_k=2, hidden=40, inner=24))
    x, order = torch.randn(40, 40), torch.randperm(40)
    assert torch.equal(moe(x)[order], moe(x[order]))


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # NumPy's, of NaN on purpose
def test_a_token_whose_logits_are_nan_spoils_no_other():
    moe = KERNELS.moe(a_moe(CPU, torch.float32, num_experts=3, top_k=2, hidden=40, inner=24))
    x, others = torch.randn(5, 40), [0, 1, 3, 4]
    expected = moe(x)
    x[2] = float("nan")
    assert torch.equal(moe(x)[others], expected[others])


SIZES = {**HEAD_16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def a_block(kind: type[nn.Module], config: transformers.PretrainedConfig, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    block = kind(config).eval()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.2)
    return block.to(dtype)


def found(block: nn.Module) -> FusedMoE | None:
    return fused_moe(block, "mlp", KERNELS, Verdicts())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("is_normalized", [True, False])
def test_a_mixture_is_recognised_and_how_it_shares(is_normalized: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    multiply_bfloat16(monkeypatch)
    block = a_block(Qwen3MoeSparseMoeBlock, transformers.Qwen3MoeConfig(**SIZES, norm_topk_prob=is_normalized), dtype)
    moe: Any = found(block)
    assert moe.parts.is_normalized == is_normalized
    assert moe.parts.down.data_ptr() == block.experts.down_proj.data_ptr()


@pytest.mark.parametrize("router_std", [1.0, 4.0])
def test_a_steep_router_hides_not_how_it_shares(router_std: float):
    """Where the logits of large inputs are far apart, the chosen experts have nearly all of the shares in either case."""
    block = a_block(Qwen3MoeSparseMoeBlock, transformers.Qwen3MoeConfig(**SIZES, norm_topk_prob=False))
    nn.init.normal_(block.gate.weight, std=router_std)
    moe: Any = found(block)
    assert not moe.parts.is_normalized


def test_another_familys_mixture_is_recognised():
    assert found(a_block(MixtralSparseMoeBlock, transformers.MixtralConfig(**HEAD_16, num_local_experts=4))) is not None


class SigmoidBlock(Qwen3MoeSparseMoeBlock):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        x = hidden_states[0]
        shares, chosen = (x @ self.gate.weight.T).sigmoid().topk(2)
        return self.experts(x, chosen, shares)[None]


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (Qwen2MoeSparseMoeBlock, transformers.Qwen2MoeConfig(**SIZES, shared_expert_intermediate_size=16)),
        (SigmoidBlock, transformers.Qwen3MoeConfig(**SIZES)),
        (Qwen3MoeSparseMoeBlock, transformers.Qwen3MoeConfig(**SIZES, hidden_act="relu")),
    ],
    ids=["shared expert", "sigmoid", "relu"],
)
def test_mixtures_of_another_kind_are_left_alone(kind: type[nn.Module], config: transformers.PretrainedConfig):
    assert found(a_block(kind, config)) is None


class OtherTwinBlock(Qwen3MoeSparseMoeBlock):
    """Of experts 4 and 5, whose logits are equal, it takes the last one if one is taken; the kernels take the first."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        x = hidden_states[0]
        order = [5, 4, 3, 2, 1, 0]
        logits = (x @ self.gate.weight.T)[:, order]
        values, numbers = logits.sort(dim=-1, descending=True, stable=True)
        chosen = torch.tensor(order)[numbers[:, :2]]
        return self.experts(x, chosen, values[:, :2].softmax(-1))[None]


def test_tokens_for_which_the_choice_is_arbitrary_are_not_compared():
    block = a_block(OtherTwinBlock, transformers.Qwen3MoeConfig(**SIZES))
    block.gate.weight.data[5] = block.gate.weight.data[4]
    assert found(block) is not None
    block.gate.weight.data.zero_()
    assert found(block) is None, "no token is left to compare"
