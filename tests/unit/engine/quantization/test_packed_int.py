"""GPTQ, AWQ and compressed-tensors: whole checkpoints as their tools write them, and the logits of the dequantised weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.builders.quantized_checkpoints import (
    CASES,
    awq,
    compressed,
    compressed_int8,
    compressed_plain,
    float8,
    float_groups_config,
    gptq,
    groups_config,
    save_quantised,
)
from torch import nn
from triptych.errors import StartupError, UnsupportedModelError
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.cpu.linear.quantized_modules import CpuQuantizedModules
from triptych_engine.runner.fusion.layer import FusedDecoderLayer
from triptych_engine.runner.model.loader import load_model
from triptych_engine.runner.model_runner import ModelRunner
from triptych_engine.runner.quantization.formats import F8, Q4_ZERO, Q4_ZERO_32, Q8
from triptych_engine.runner.quantization.packed_float import read_float8
from triptych_engine.runner.quantization.packed_int import read_awq, read_compressed, read_gptq

CPU = torch.device("cpu")


def load(path: Path) -> ModelRunner:
    return build_runner(RunnerConfig(path, "tiny", 256, 8, 64, 16, 1 << 22))


@pytest.mark.parametrize("name", CASES)
def test_the_logits_are_those_of_the_dequantised_weights(name: str, tmp_path: Path):
    model = save_quantised(tmp_path, CASES[name])
    modules = CpuQuantizedModules(load_kernels(), batch_invariant=True)  # type: ignore[arg-type]
    exact = load_model(tmp_path, "", dtype=None, device=CPU, max_model_len=64, quantized_modules=modules)
    torch.testing.assert_close(exact.probe_logits, model(exact.probe_token_ids[None]).logits[0], rtol=1e-4, atol=1e-4)
    runner = load(tmp_path)
    prompt = [i * 37 % 90 for i in range(40)]
    similarity = nn.functional.cosine_similarity(runner.prompt_logits(prompt), model(torch.tensor([prompt])).logits[0], dim=-1)
    assert similarity.median() > 0.999
    layers = [module for module in runner._model.model.modules() if isinstance(module, FusedDecoderLayer)]
    assert [layer.kernel is not None for layer in layers] == [True, True]


def test_formats_that_take_least_memory_are_chosen():
    weight = torch.randn(128, 256)
    readers = {
        gptq: read_gptq,
        awq: read_awq,
        compressed: read_compressed,
        compressed_plain: read_compressed,
        compressed_int8: read_compressed,
        float8: read_float8,
    }
    formats = {"gptq-asymmetric-32": Q4_ZERO_32, "awq-64": Q4_ZERO_32, "gptq-8": Q8, "compressed-8": Q8}
    formats |= dict.fromkeys(("fp8", "fp8-tensor", "fp8-channel"), F8)
    for name in CASES:
        pack, bits, group, symmetric, config = CASES[name]
        tensors = pack(weight.clone(), bits, group, symmetric)
        options = config["config_groups"]["group_0"]["weights"] if "config_groups" in config else config
        packed = readers[pack](tensors.get, options, "layer")  # type: ignore[operator]
        assert packed is not None
        assert packed.tensor("layer").format is formats.get(name, Q4_ZERO)


REFUSALS = {
    "exl3": ({"quant_method": "exl3"}, r"quantised by 'exl3'; supported are gptq, awq, compressed-tensors, fp8, mxfp4, and GGUF"),
    "fp4": (
        float_groups_config("channel") | {"config_groups": {"a": {"weights": {"num_bits": 4, "type": "float"}}}},
        r"as float-quantized with 4 bits of float; 4 and 8 bits of int, and 8 of float, are supported",
    ),
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


def configure(path: Path, change: Any) -> None:
    whole = json.loads((path / "config.json").read_text())
    change(whole)
    (path / "config.json").write_text(json.dumps(whole))


@pytest.mark.parametrize("name", ["gptq", "compressed-8", "fp8", "fp8-tensor"])
def test_quantised_weights_that_the_configuration_does_not_mention_are_refused(name: str, tmp_path: Path):
    save_quantised(tmp_path, CASES[name])
    configure(tmp_path, lambda whole: whole.pop("quantization_config"))
    with pytest.raises(UnsupportedModelError, match=r"are quantised .* config\.json has no quantization_config"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["compressed-4", "fp8-channel"])
def test_the_older_name_of_the_configuration_is_known(name: str, tmp_path: Path):
    model = save_quantised(tmp_path, CASES[name])
    configure(tmp_path, lambda whole: whole.update(compression_config=whole.pop("quantization_config")))
    prompt = [i * 37 % 90 for i in range(40)]
    got, expected = load(tmp_path).prompt_logits(prompt), model(torch.tensor([prompt])).logits[0]
    assert nn.functional.cosine_similarity(got, expected, dim=-1).median() > 0.999


def test_blocks_of_floats_need_not_divide_the_weight():
    weight = torch.randn(70, 300).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 3) + 0.5
    tensors = {"weight": weight, "weight_scale": scales}
    for size in ([64, 128], "64x128"):
        packed = read_float8(tensors.get, {"strategy": "block", "block_structure": size}, "layer")
        assert packed is not None
        whole = torch.cat([rows.dequantize() for rows in packed.tensor("layer").portions()])
        spread = scales.repeat_interleave(64, 0)[:70].repeat_interleave(128, 1)[:, :300]
        assert torch.equal(whole, weight.float() * spread)
    with pytest.raises(UnsupportedModelError, match="scales by group; by tensor, channel and block"):
        read_float8(tensors.get, {"strategy": "group", "group_size": 128}, "layer")


LAYER = "model.layers.1.mlp.down_proj"


def with_nan(weight: torch.Tensor) -> torch.Tensor:
    bits = weight.view(torch.uint8).clone()
    bits[3, 4] = 0xFF
    return bits.view(torch.float8_e4m3fn)


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
        ("fp8", "weight_scale_inv", lambda scales: scales[:1], StartupError, rf"{LAYER} has \[1, 4\] scales for .* \[2, 4\] are"),
        ("fp8", "weight_scale_inv", lambda scales: scales / 0, StartupError, rf"{LAYER} has values that are not finite"),
        (
            "fp8",
            "weight_scale_inv",
            lambda scales: scales.to(torch.uint8),
            UnsupportedModelError,
            rf"the scales of {LAYER} are uint8",
        ),
        ("fp8-channel", "weight_scale", None, UnsupportedModelError, rf"{LAYER} is quantised and has no weight_scale"),
        ("fp8-channel", "weight", lambda weight: with_nan(weight), StartupError, rf"{LAYER} has values that are not finite"),
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
