"""Mixtures of experts whose weights are quantised: gpt-oss in MXFP4, and families that store each expert's layers by themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.builders.engine import a_request
from support.builders.quantized_checkpoints import CASES, Tensors
from support.drivers.engine import EngineDriver
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GptOssConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
)
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts
from triptych.errors import StartupError, UnsupportedModelError
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.cpu.linear.quantized_modules import CpuQuantizedModules
from triptych_engine.runner.model.loader import load_model
from triptych_engine.runner.quantization.experts import ExpertModules, ExpertsShape, activation_of, computes_the_same
from triptych_engine.runner.quantization.formats import F4, TABLE
from triptych_engine.runner.quantization.packed_mxfp4 import mxfp4_tensor

CPU = torch.device("cpu")
GPT_OSS = GptOssConfig(
    vocab_size=97, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=32, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=256, eos_token_id=2, pad_token_id=0,
    sliding_window=32,
)  # fmt: skip
QWEN3_MOE = Qwen3MoeConfig(
    vocab_size=97, hidden_size=256, intermediate_size=512, moe_intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=64, num_experts=4, num_experts_per_tok=2, max_position_embeddings=256, eos_token_id=2,
)  # fmt: skip
DEEPSEEK_V3 = DeepseekV3Config(
    vocab_size=97, hidden_size=256, intermediate_size=512, moe_intermediate_size=128, num_hidden_layers=3, first_k_dense_replace=1,
    num_attention_heads=4, num_key_value_heads=4, q_lora_rank=128, kv_lora_rank=128, qk_rope_head_dim=32, qk_nope_head_dim=32,
    v_head_dim=64, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, n_group=2, topk_group=1,
    max_position_embeddings=256, eos_token_id=2,
)  # fmt: skip
PROMPT = [i * 37 % 90 for i in range(40)]
EXPERTS = "model.layers.1.mlp.experts"


def a_model(config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval().requires_grad_(False)
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=1.0 if parameter.dim() == 1 and parameter.numel() == config.hidden_size else 0.0, std=0.1)
    return model


def save(path: Path, model: PreTrainedModel, tensors: Tensors, quantization: dict[str, Any]) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors", {"format": "pt"})
    whole = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(whole | {"quantization_config": quantization}))


def mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Blocks [..., in / 32, 16] and exponents [..., in / 32] of a weight [..., in], and what they stand for."""
    floats = torch.tensor(TABLE) / 2
    groups = weight.unflatten(-1, (-1, 32))
    exponents = (groups.abs().amax(-1) / 6).clamp(min=1e-9).log2().ceil()
    values = (groups / exponents.exp2()[..., None])[..., None].sub(floats).abs().argmin(-1)
    packed = (values[..., ::2] | values[..., 1::2] << 4).to(torch.uint8)
    return packed, (exponents + 127).to(torch.uint8), (floats[values] * exponents.exp2()[..., None]).flatten(-2)


def save_gpt_oss(path: Path) -> PreTrainedModel:
    """A checkpoint as gpt-oss's are. Returns the model with the weights that it stands for."""
    model = a_model(GPT_OSS)
    model.save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    for name, module in model.named_modules():
        if isinstance(module, GptOssExperts):
            for part in ("gate_up_proj", "down_proj"):
                parameter = getattr(module, part)
                blocks, exponents, weight = mxfp4(parameter.transpose(1, 2).contiguous())
                parameter.copy_(weight.transpose(1, 2))
                del tensors[f"{name}.{part}"]
                tensors |= {f"{name}.{part}_blocks": blocks, f"{name}.{part}_scales": exponents}
    save(path, model, tensors, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]})
    return model


def save_qwen3_moe(path: Path, case: str) -> PreTrainedModel:
    return save_experts(path, case, QWEN3_MOE)


def save_experts(path: Path, case: str, config: PretrainedConfig) -> PreTrainedModel:
    """A checkpoint with the layers of each expert by themselves, quantised; and the router as it is."""
    pack, bits, group, symmetric, quantization = CASES[case]
    model = a_model(config)
    for name, buffer in model.named_buffers():
        if "e_score_correction_bias" in name:
            buffer.copy_(torch.rand(buffer.shape))
    model.save_pretrained(path)
    tensors = {name: tensor for name, tensor in load_file(path / "model.safetensors").items() if ".experts." not in name}

    def add(name: str, weight: torch.Tensor) -> torch.Tensor:
        weight = weight.clone()
        tensors.pop(f"{name}.weight", None)
        tensors.update({f"{name}.{part}": value for part, value in pack(weight, bits, group, symmetric).items()})
        return weight

    for name, module in model.named_modules():
        if type(module) is nn.Linear and name != "lm_head":
            module.weight.copy_(add(name, module.weight))
        elif ExpertsShape.of(module) is not None:
            for number in range(len(module.down_proj)):
                gate, up = module.gate_up_proj[number].chunk(2)
                gate.copy_(add(f"{name}.{number}.gate_proj", gate))
                up.copy_(add(f"{name}.{number}.up_proj", up))
                module.down_proj[number].copy_(add(f"{name}.{number}.down_proj", module.down_proj[number]))
    save(path, model, tensors, quantization)
    return model


SAVED: dict[str, Callable[[Path], PreTrainedModel]] = {
    "gpt-oss in mxfp4": save_gpt_oss,
    "qwen3-moe in fp8": lambda path: save_qwen3_moe(path, "fp8"),
    "qwen3-moe in fp8 by channel": lambda path: save_qwen3_moe(path, "fp8-channel"),
    "qwen3-moe in gptq": lambda path: save_qwen3_moe(path, "gptq"),
    "qwen3-moe in awq": lambda path: save_qwen3_moe(path, "awq"),
    "deepseek-v3 in fp8": lambda path: save_experts(path, "fp8-channel", DEEPSEEK_V3),
    "qwen3-moe in compressed-tensors": lambda path: save_qwen3_moe(path, "compressed-4-asymmetric"),
}


@pytest.mark.parametrize("name", SAVED)
def test_the_logits_are_those_of_the_dequantised_weights(name: str, tmp_path: Path) -> None:
    model = SAVED[name](tmp_path)
    modules = CpuQuantizedModules(load_kernels(), batch_invariant=True)  # type: ignore[arg-type]
    exact = load_model(tmp_path, "", dtype=None, device=CPU, max_model_len=64, quantized_modules=modules)
    torch.testing.assert_close(exact.probe_logits, model(exact.probe_token_ids[None]).logits[0], rtol=1e-4, atol=1e-4)
    runner = build_runner(RunnerConfig(tmp_path, "tiny", 256, 8, 64, 16, 1 << 22))
    assert {shape.values_in_keys for shape in runner._model.layers.values()} == {"deepseek" in name}
    expected = model(torch.tensor([PROMPT])).logits[0]
    assert nn.functional.cosine_similarity(runner.prompt_logits(PROMPT), expected, dim=-1).median() > 0.999
    experts = [module for module in runner._model.model.modules() if isinstance(module, ExpertModules)]
    assert len(experts) == 2
    assert not [one for one, parameter in runner._model.model.named_parameters() if ".experts." in one and parameter.numel() > 0]


def test_a_batch_gives_what_each_gives_alone(tmp_path: Path) -> None:
    save_gpt_oss(tmp_path)
    driver = EngineDriver(tmp_path, dtype=None)
    requests = [a_request(f"r{length}", PROMPT[:length], max_tokens=12) for length in (1, 7, 33, 40)]
    alone = [driver.run(driver.scheduler(), [request])[request.request_id].token_ids for request in requests]
    requests = [a_request(request.request_id, request.prompt_token_ids, max_tokens=12) for request in requests]
    together = driver.run(driver.scheduler(max_num_batched_tokens=32), requests)
    assert [together[request.request_id].token_ids for request in requests] == alone


@pytest.mark.parametrize(("cls", "config"), [(GptOssExperts, GPT_OSS), (Qwen3MoeExperts, QWEN3_MOE)])
def test_a_family_with_another_formula_is_noticed(cls: type[nn.Module], config: PretrainedConfig) -> None:
    module = cls(config)
    activation = activation_of(module)
    assert activation is not None
    assert computes_the_same(module, activation)
    assert not computes_the_same(module, lambda both: both.chunk(2, -1)[0])

    class Doubled(cls):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any) -> torch.Tensor:
            return 2 * super().forward(*args)

    assert not computes_the_same(Doubled(config), activation)


def test_the_sizes_of_experts_are_known_however_they_are_stored() -> None:
    assert ExpertsShape.of(GptOssExperts(GPT_OSS)) == ExpertsShape(4, 128, 128)
    assert ExpertsShape.of(Qwen3MoeExperts(QWEN3_MOE)) == ExpertsShape(4, 256, 128)
    assert ExpertsShape.of(nn.Linear(3, 4)) is None


def test_blocks_of_floats_of_4_bits_are_what_the_specification_says() -> None:
    blocks = (torch.arange(16) | (15 - torch.arange(16)) << 4).to(torch.uint8).repeat(3, 2, 1)
    exponents = torch.tensor([[127, 130], [120, 0], [128, 127]], dtype=torch.uint8)
    tensor = mxfp4_tensor("w", (3, 64), lambda begin, end: blocks[begin:end], exponents)
    (rows,) = tensor.portions()
    floats = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
    pairs = torch.tensor([value for pair in zip(floats, floats[::-1], strict=True) for value in pair])
    expected = pairs.repeat(3, 2) * torch.exp2(exponents.float() - 127).repeat_interleave(32, 1)
    assert rows.format is F4
    assert torch.equal(rows.dequantize()[[0, 2]], expected[[0, 2]])
    assert torch.equal(rows.dequantize()[1, :32], expected[1, :32])
    assert rows.dequantize()[1, 32:].eq(0).all(), "what is smaller than fp16 holds becomes zero"


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        (lambda t: t.pop(f"{EXPERTS}.down_proj_scales"), StartupError, r"down_proj_scales has the shape \[\], not \[4, 128, 4\]"),
        (
            lambda t: t.update({f"{EXPERTS}.gate_up_proj_blocks": t[f"{EXPERTS}.gate_up_proj_blocks"][:, :-1]}),
            StartupError,
            r"gate_up_proj_blocks has the shape \[4, 255, 4, 16\], not \[4, 256, 4, 16\]",
        ),
        (
            lambda t: t[f"{EXPERTS}.down_proj_scales"].fill_(200),
            UnsupportedModelError,
            rf"expert 0 of {EXPERTS}.down_proj has a scale of 2\^73, which is not supported",
        ),
        (
            lambda t: t.update({f"{EXPERTS}.w1": t.pop(f"{EXPERTS}.gate_up_proj_blocks")}),
            UnsupportedModelError,
            rf"of {EXPERTS} is stored in another way than {EXPERTS}.0.gate_proj and {EXPERTS}.gate_up_proj_blocks",
        ),
    ],
    ids=["no scales", "cut", "too large", "other names"],
)
def test_what_is_wrong_is_named(change: Callable[[Tensors], Any], error: type[Exception], reason: str, tmp_path: Path) -> None:
    save_gpt_oss(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(error, match=reason):
        build_runner(RunnerConfig(tmp_path, "tiny", 256, 8, 64, 16, 1 << 22))


def test_an_expert_that_is_not_quantised_is_named(tmp_path: Path) -> None:
    save_qwen3_moe(tmp_path, "gptq")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"{EXPERTS}.2.up_proj.qweight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedModelError, match=rf"{EXPERTS}.2.up_proj in .* is not quantised; a layer's experts must all be"):
        build_runner(RunnerConfig(tmp_path, "tiny", 256, 8, 64, 16, 1 << 22))


def test_a_bias_of_experts_that_is_missing_is_named(tmp_path: Path) -> None:
    save_gpt_oss(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"{EXPERTS}.down_proj_bias"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(StartupError, match=rf"lacks {EXPERTS}.down_proj_bias"):
        build_runner(RunnerConfig(tmp_path, "tiny", 256, 8, 64, 16, 1 << 22))


def test_layers_whose_experts_are_not_quantised_and_biases_of_zeros(tmp_path: Path) -> None:
    """As some tools write checkpoints of mixtures."""
    model = save_qwen3_moe(tmp_path, "gptq")
    tensors = load_file(tmp_path / "model.safetensors")
    experts = model.get_submodule(EXPERTS)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{EXPERTS}.")}
    for number in range(QWEN3_MOE.num_experts):
        gate, up = experts.gate_up_proj[number].chunk(2)  # type: ignore[operator, union-attr]
        parts = {"gate_proj": gate, "up_proj": up, "down_proj": experts.down_proj[number]}  # type: ignore[index]
        tensors |= {f"{EXPERTS}.{number}.{part}.weight": weight.contiguous() for part, weight in parts.items()}
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(256)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    runner = build_runner(RunnerConfig(tmp_path, "tiny", 256, 8, 64, 16, 1 << 22))
    expected = model(torch.tensor([PROMPT])).logits[0]
    assert nn.functional.cosine_similarity(runner.prompt_logits(PROMPT), expected, dim=-1).median() > 0.999


def test_a_router_that_is_quantised_is_dequantised(tmp_path: Path) -> None:
    model = save_qwen3_moe(tmp_path, "fp8-channel")
    tensors, router = load_file(tmp_path / "model.safetensors"), model.get_parameter("model.layers.0.mlp.gate.weight")
    packed = CASES["fp8-channel"][0](router, 8, 0, True)
    tensors |= {f"model.layers.0.mlp.gate.{part}": value for part, value in packed.items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    runner = build_runner(RunnerConfig(tmp_path, "tiny", 256, 8, 64, 16, 1 << 22))
    assert torch.equal(runner._model.model.get_parameter("model.layers.0.mlp.gate.weight"), router)
