"""GPTQ, AWQ and compressed-tensors: whole checkpoints as their tools write them, and the logits of the dequantised weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.builders.engine import a_tiny_llama_config
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from triptych.errors import StartupError, UnsupportedModelError
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu.decoder_layer import FusedDecoderLayer
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.cpu.linear.quant import CpuQuantizedModules
from triptych_engine.runner.model.loader import load_model
from triptych_engine.runner.model_runner import ModelRunner
from triptych_engine.runner.quantization.formats import Q4_ZERO, Q4_ZERO_32, Q8
from triptych_engine.runner.quantization.packed_int import read_awq, read_compressed, read_gptq

Tensors = dict[str, torch.Tensor]
CPU = torch.device("cpu")


def pack_words(values: torch.Tensor, bits: int) -> torch.Tensor:
    """[rows, columns] integers -> [rows, columns * bits / 32] int32, the first in the lowest bits."""
    per_word = 32 // bits
    words = values.long().unflatten(1, (-1, per_word)) << bits * torch.arange(per_word)
    total = words.sum(-1)
    return torch.where(total >= 1 << 31, total - (1 << 32), total).int()


def quantised(weight: torch.Tensor, bits: int, group: int, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values [out, in], scales fp16 [out, groups], zero points [out, groups]; and the weight becomes what they stand for."""
    most = (1 << bits) - 1
    size = group if group > 0 else weight.shape[1]
    groups = weight.unflatten(1, (-1, size))
    if symmetric:
        scales = (groups.abs().amax(-1) / (most // 2)).half()
        zeros = torch.full(scales.shape, 1 << bits - 1)
    else:
        scales = ((groups.amax(-1) - groups.amin(-1)) / most).half()
        zeros = (-groups.amin(-1) / scales.float()).round().clamp(0, most).long()
    values = (groups / scales.float()[..., None] + zeros[..., None]).round().clamp(0, most).long()
    weight.copy_(((values - zeros[..., None]) * scales.float()[..., None]).flatten(1))
    return values.flatten(1), scales, zeros


def gptq(weight: torch.Tensor, bits: int, group: int, symmetric: bool) -> Tensors:
    values, scales, zeros = quantised(weight, bits, group, symmetric)
    size = group if group > 0 else weight.shape[1]
    return {
        "qweight": pack_words(values, bits).t().contiguous(),
        "qzeros": pack_words((zeros.t() - 1) % (1 << bits), bits),
        "scales": scales.t().contiguous(),
        "g_idx": (torch.arange(weight.shape[1]) // size).int(),
    }


def awq(weight: torch.Tensor, bits: int, group: int, symmetric: bool) -> Tensors:
    values, scales, zeros = quantised(weight, bits, group, symmetric)

    def outputs(of_outputs: torch.Tensor) -> torch.Tensor:  # [out, n] -> [n, out / 8], as AutoAWQ's WQLinear_GEMM packs
        columns = of_outputs.t().unflatten(1, (-1, 8))[..., [0, 2, 4, 6, 1, 3, 5, 7]]
        return pack_words(columns.flatten(1), bits)

    return {"qweight": outputs(values), "qzeros": outputs(zeros), "scales": scales.t().contiguous()}


def compressed(weight: torch.Tensor, bits: int, group: int, symmetric: bool) -> Tensors:
    values, scales, zeros = quantised(weight, bits, group, symmetric)
    tensors = {
        "weight_packed": pack_words(values, bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        tensors["weight_zero_point"] = pack_words(zeros.t(), bits).t().contiguous()
    return tensors


def compressed_int8(weight: torch.Tensor, bits: int, group: int, symmetric: bool) -> Tensors:
    values, scales, _ = quantised(weight, bits, group, symmetric)
    return {"weight": (values - 128).to(torch.int8), "weight_scale": scales}


def compressed_plain(weight: torch.Tensor, bits: int, group: int, symmetric: bool) -> Tensors:
    values, scales, zeros = quantised(weight, bits, group, symmetric)
    middle = 1 << bits - 1
    return {
        "weight": (values - middle).to(torch.int8),
        "weight_scale": scales,
        "weight_zero_point": (zeros - middle).to(torch.int8),
    }


def groups_config(bits: int, group: int, symmetric: bool, form: str, **more: Any) -> dict[str, Any]:
    strategy = "group" if group > 0 else "channel"
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": strategy,
        "group_size": group if group > 0 else None,
    }
    one = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": one}, "ignore": ["lm_head"], **more}


Case = tuple[Callable[..., Tensors], int, int, bool, dict[str, Any]]
CASES: dict[str, Case] = {
    "gptq": (gptq, 4, 128, True, {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}),
    "gptq-asymmetric-32": (
        gptq,
        4,
        32,
        False,
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False},
    ),
    "gptq-channel": (gptq, 4, -1, True, {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": False, "sym": True}),
    "gptq-8": (gptq, 8, 128, True, {"quant_method": "gptq", "bits": 8, "group_size": 128, "desc_act": False, "sym": True}),
    "awq": (awq, 4, 128, False, {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}),
    "awq-64": (awq, 4, 64, False, {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "GEMM"}),
    "compressed-4": (compressed, 4, 128, True, groups_config(4, 128, True, "pack-quantized")),
    "compressed-4-asymmetric": (compressed, 4, 128, False, groups_config(4, 128, False, "pack-quantized")),
    "compressed-4-plain": (compressed_plain, 4, 128, False, groups_config(4, 128, False, "int-quantized")),
    "compressed-8": (compressed_int8, 8, -1, True, groups_config(8, -1, True, "int-quantized")),
}


def save_quantised(path: Path, case: Case, **changes: Any) -> PreTrainedModel:
    """A checkpoint as the format's tools write it. Returns the model as transformers computes it."""
    pack, bits, group, symmetric, config = case
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    model = AutoModelForCausalLM.from_config(a_tiny_llama_config(**(sizes | changes))).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    for name, module in model.named_modules():
        if type(module) is nn.Linear and name != "lm_head":
            del tensors[f"{name}.weight"]
            tensors |= {f"{name}.{part}": value for part, value in pack(module.weight.data, bits, group, symmetric).items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors", {"format": "pt"})
    whole = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(whole | {"quantization_config": config}))
    return model


def load(path: Path) -> ModelRunner:
    return build_runner(RunnerConfig(path, "tiny", 256, 8, 64, 16, 1 << 22))


@pytest.mark.parametrize("name", CASES)
def test_the_logits_are_those_of_the_dequantised_weights(name: str, tmp_path: Path):
    model = save_quantised(tmp_path, CASES[name])
    modules = CpuQuantizedModules(load_kernels().quant)  # type: ignore[union-attr]
    exact = load_model(tmp_path, "", dtype=None, device=CPU, max_model_len=64, quantized_modules=modules)
    torch.testing.assert_close(exact.probe_logits, model(exact.probe_token_ids[None]).logits[0], rtol=1e-4, atol=1e-4)
    runner = load(tmp_path)
    prompt = [i * 37 % 90 for i in range(40)]
    similarity = nn.functional.cosine_similarity(runner.prompt_logits(prompt), model(torch.tensor([prompt])).logits[0], dim=-1)
    assert similarity.median() > 0.999
    layers = [module for module in runner._model.model.modules() if isinstance(module, FusedDecoderLayer)]
    assert [layer.kernel is not None for layer in layers] == [True, True]


def test_formats_that_take_least_memory_are_chosen():
    weight = torch.randn(64, 256)
    readers = {
        gptq: read_gptq,
        awq: read_awq,
        compressed: read_compressed,
        compressed_plain: read_compressed,
        compressed_int8: read_compressed,
    }
    formats = {"gptq-asymmetric-32": Q4_ZERO_32, "awq-64": Q4_ZERO_32, "gptq-8": Q8, "compressed-8": Q8}
    for name in CASES:
        pack, bits, group, symmetric, config = CASES[name]
        tensors = pack(weight.clone(), bits, group, symmetric)
        options = config["config_groups"]["group_0"]["weights"] if "config_groups" in config else config
        packed = readers[pack](tensors.get, options, "layer")  # type: ignore[operator]
        assert packed is not None
        assert packed.tensor("layer").format is formats.get(name, Q4_ZERO)


REFUSALS = {
    "fp8": ({"quant_method": "fp8"}, r"quantised by 'fp8'; supported are gptq, awq, compressed-tensors with integers, and GGUF"),
    "3 bits": (CASES["gptq"][4] | {"bits": 3}, "its GPTQ weights have 3 bits; 4 and 8 are supported"),
    "awq gemv": (CASES["awq"][4] | {"version": "gemv"}, "its AWQ weights are packed for 'gemv'; 'gemm' is supported"),
    "rotated": (
        CASES["compressed-4"][4] | {"transform_config": {"a": 1}},
        "its transform_config in quantization_config is not supported",
    ),
    "sparse": (groups_config(4, 128, True, "marlin-24"), "by compressed-tensors as marlin-24 with 4 bits of int"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_not_supported_is_named_with_what_is(name: str, tmp_path: Path):
    config, reason = REFUSALS[name]
    save_quantised(tmp_path, CASES["gptq"])
    whole = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(whole | {"quantization_config": config}))
    with pytest.raises(UnsupportedModelError, match=reason):
        load(tmp_path)


LAYER = "model.layers.1.mlp.down_proj"


@pytest.mark.parametrize(
    ("case", "part", "change", "error", "reason"),
    [
        (
            "gptq",
            "g_idx",
            lambda order: order.flip(0),
            UnsupportedModelError,
            rf"{LAYER} orders its inputs by activation \(desc_act\)",
        ),
        (
            "gptq",
            "scales",
            lambda scales: scales.double() * 1e9,
            UnsupportedModelError,
            rf"a scale of {LAYER} is .*, which fp16 does not",
        ),
        ("gptq", "qzeros", None, UnsupportedModelError, rf"{LAYER} has a qweight without scales and qzeros"),
        ("gptq", "qweight", lambda words: words[:, :-8], StartupError, rf"{LAYER} has the shape \[248, 512\], not \[256, 512\]"),
        ("gptq-8", "qzeros", lambda words: words + 1, UnsupportedModelError, rf"{LAYER} has 8 bits and zero points"),
        (
            "gptq",
            "scales",
            lambda scales: scales[::2],
            StartupError,
            rf"{LAYER} has \[256, 2\] scales for .* \[256, 4\] are needed",
        ),
        ("compressed-4-plain", "weight", lambda values: values + 8, StartupError, rf"{LAYER} has values of more than 4 bits"),
        ("awq", "act.scales", None, UnsupportedModelError, rf"has 1 tensors that are not understood, e\.g\. {LAYER}\.act\.scales"),
        ("gptq", "qweight", None, StartupError, rf"lacks 1 weights, e\.g\. {LAYER}\.weight"),
    ],
)
def test_what_is_wrong_is_named_with_its_layer(
    case: str, part: str, change: Any, error: type[Exception], reason: str, tmp_path: Path
):
    save_quantised(tmp_path, CASES[case])
    tensors = load_file(tmp_path / "model.safetensors")
    value = tensors.pop(f"{LAYER}.{part}", None)
    if value is None:  # one that does not belong there
        tensors[f"{LAYER}.{part}"] = torch.ones(4)
    elif change is not None:
        tensors[f"{LAYER}.{part}"] = change(value).contiguous()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(error, match=reason):
        load(tmp_path)


def test_layers_that_are_left_out_stay_as_they_are(tmp_path: Path):
    """By a pattern, as tools write it."""
    pack, bits, group, symmetric, config = CASES["compressed-4"]
    model = save_quantised(tmp_path, (pack, bits, group, symmetric, config | {"ignore": ["lm_head", "re:.*self_attn.*"]}))
    tensors = load_file(tmp_path / "model.safetensors")
    for name, module in model.named_modules():
        if "self_attn." in name and type(module) is nn.Linear:
            tensors = {key: value for key, value in tensors.items() if not key.startswith(f"{name}.")}
            tensors[f"{name}.weight"] = module.weight.data
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    runner = load(tmp_path)
    prompt = [i * 37 % 90 for i in range(40)]
    similarity = nn.functional.cosine_similarity(runner.prompt_logits(prompt), model(torch.tensor([prompt])).logits[0], dim=-1)
    assert similarity.median() > 0.999


def test_a_quantised_output_head(tmp_path: Path):
    case = CASES["gptq"]
    model = save_quantised(tmp_path, case, vocab_size=96)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    tensors |= {f"lm_head.{part}": value for part, value in gptq(model.lm_head.weight.data, 4, 128, symmetric=True).items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    prompt = [i * 37 % 90 for i in range(40)]
    expected = model(torch.tensor([prompt])).logits[0]
    similarity = nn.functional.cosine_similarity(load(tmp_path).prompt_logits(prompt), expected, dim=-1)
    assert similarity.median() > 0.999


def test_a_missing_output_head_is_not_taken_for_a_tied_one(tmp_path: Path):
    save_quantised(tmp_path, CASES["gptq"])
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(StartupError, match=r"lacks 1 weights, e\.g\. lm_head\.weight"):
        load(tmp_path)


def test_a_layers_own_group_comes_before_the_one_of_all(tmp_path: Path):
    pack, bits, group, symmetric, config = CASES["compressed-4-asymmetric"]
    asymmetric = config["config_groups"]["group_0"]
    groups = {
        "group_0": CASES["compressed-4"][4]["config_groups"]["group_0"],
        "group_1": asymmetric | {"targets": ["re:.*"]},
    }
    model = save_quantised(tmp_path, (pack, bits, group, symmetric, config | {"config_groups": groups}))
    prompt = [i * 37 % 90 for i in range(40)]
    expected = model(torch.tensor([prompt])).logits[0]
    similarity = nn.functional.cosine_similarity(load(tmp_path).prompt_logits(prompt), expected, dim=-1)
    assert similarity.median() > 0.999
