"""The kernel for the experts of a mixture beside the same experts one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import transformers
from torch import nn
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts
from triptych_engine.runner.cpu.fused import CpuFusedKernels
from triptych_engine.runner.cpu.kernels import CpuKernels, load_kernels
from triptych_engine.runner.cpu.linear.experts import KernelExperts
from triptych_engine.runner.cpu.linear.quant import QuantLinear
from triptych_engine.runner.quantization.experts import ExpertModules
from triptych_engine.runner.quantization.formats import ON_THE_FLY

KERNELS: CpuKernels = load_kernels()  # type: ignore[assignment]
pytestmark = pytest.mark.skipif(KERNELS is None, reason="there are no kernels for this CPU")
NUM_EXPERTS, HIDDEN, INNER, TOP_K = 8, 96, 72, 3  # no multiples of a panel


def qwen3_moe(hidden: int = HIDDEN, inner: int = INNER) -> nn.Module:
    sizes = {"hidden_size": hidden, "moe_intermediate_size": inner, "num_experts": NUM_EXPERTS}
    return Qwen3MoeExperts(transformers.Qwen3MoeConfig(**sizes))


def gpt_oss(hidden: int = HIDDEN, inner: int = INNER) -> nn.Module:
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_local_experts": NUM_EXPERTS}
    return GptOssExperts(transformers.GptOssConfig(**sizes))


MODULES = {"Qwen3-MoE": qwen3_moe, "gpt-oss": gpt_oss}


def random(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Whose weights are numbers of bfloat16."""
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data = (torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5).bfloat16().to(dtype)
    return module.eval().requires_grad_(False)


def routed(
    num_tokens: int, hidden: int = HIDDEN, num_experts: int = NUM_EXPERTS
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_tokens)
    x = torch.randn(num_tokens, hidden, generator=generator)
    chosen = torch.stack([torch.randperm(num_experts, generator=generator)[:TOP_K] for _ in range(num_tokens)])
    return x, chosen, torch.rand(num_tokens, TOP_K, generator=generator)


def packed(module: nn.Module, **options: object) -> KernelExperts:
    made = CpuFusedKernels(KERNELS, **options).experts(module)  # type: ignore[arg-type]
    assert isinstance(made, KernelExperts)
    assert not list(module.parameters()) or all("bias" in name for name, _ in module.named_parameters()), "no weight is held twice"
    return made


def one_by_one(experts: KernelExperts, *arguments: torch.Tensor) -> torch.Tensor:
    return ExpertModules.forward(experts, *arguments)


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("num_tokens", [1, 2, 7, 40, 130])
def test_float32_experts_compute_what_transformers_does(make: Callable[[], nn.Module], num_tokens: int) -> None:
    module = random(make(), torch.float32)
    own = copy.deepcopy(module)
    experts, arguments = packed(module), routed(num_tokens)
    torch.testing.assert_close(experts(*arguments), own(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("num_tokens", [1, 5, 64])
def test_bfloat16_experts_compute_what_they_do_one_by_one(make: Callable[[], nn.Module], num_tokens: int) -> None:
    if KERNELS.linear_method == "fp32":
        assert CpuFusedKernels(KERNELS).experts(random(make(), torch.bfloat16)) is None
        return
    experts = packed(random(make(), torch.bfloat16))
    x, chosen, shares = routed(num_tokens)
    got = experts(x.bfloat16(), chosen, shares)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), one_by_one(experts, x, chosen, shares), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("form", ON_THE_FLY)
@pytest.mark.parametrize("is_invariant", [True, False])
def test_quantised_experts(make: Callable[..., nn.Module], form: str, is_invariant: bool) -> None:
    """Until they are quantised they compute as before; then in one call what they do one by one."""
    module = random(make(128, 96), torch.float32)
    own = copy.deepcopy(module)
    experts = packed(module, form=ON_THE_FLY[form], batch_invariant=is_invariant)
    arguments = routed(20, 128)
    torch.testing.assert_close(experts(*arguments), own(*arguments), rtol=1e-4, atol=1e-5)
    for layer in experts.modules():
        if isinstance(layer, QuantLinear):
            layer.quantize()
    for num_tokens in (1, 20, 90):
        arguments = routed(num_tokens, 128)
        expected, got = one_by_one(experts, *arguments), experts(*arguments)
        assert torch.nn.functional.cosine_similarity(got, expected).min() > 0.999
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2 * expected.abs().max().item())


@pytest.mark.parametrize("form", [None, *ON_THE_FLY])
def test_a_tokens_result_does_not_depend_on_the_others(form: str | None) -> None:
    options = {} if form is None else {"form": ON_THE_FLY[form], "batch_invariant": True}
    experts = packed(random(qwen3_moe(), torch.float32), **options)
    for layer in experts.modules():
        if isinstance(layer, QuantLinear):
            layer.quantize()
    x, chosen, shares = routed(50)
    together = experts(x, chosen, shares)
    for token in (0, 17, 49):
        one = slice(token, token + 1)
        assert torch.equal(experts(x[one], chosen[one], shares[one]), together[one])


def test_all_tokens_may_choose_the_same_experts() -> None:
    module = random(qwen3_moe(), torch.float32)
    own = copy.deepcopy(module)
    experts = packed(module)
    x, _, shares = routed(33)
    chosen = torch.tensor([[7, 0, 3]]).repeat(33, 1)
    torch.testing.assert_close(experts(x, chosen, shares), own(x, chosen, shares), rtol=1e-4, atol=1e-5)
    assert experts(x[:0], chosen[:0], shares[:0]).shape == (0, HIDDEN)


def test_experts_with_another_activation_keep_their_module() -> None:
    module = random(
        Qwen3MoeExperts(transformers.Qwen3MoeConfig(hidden_size=64, moe_intermediate_size=32, num_experts=4, hidden_act="gelu")),
        torch.float32,
    )
    assert CpuFusedKernels(KERNELS).experts(module) is None
    assert isinstance(module.gate_up_proj, nn.Parameter)
    assert CpuFusedKernels(KERNELS).experts(nn.Linear(4, 4)) is None
