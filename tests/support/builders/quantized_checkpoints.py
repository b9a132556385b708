"""Checkpoints with quantised weights as the tools of each kind write them, and the same models in transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from support.builders.engine import a_tiny_llama_config

Tensors = dict[str, torch.Tensor]


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


def float8(weight: torch.Tensor, bits: int, block: int, symmetric: bool) -> Tensors:
    """block: outputs and inputs of a square block; 0 for a scale per output, -1 for one of the whole weight."""
    rows, columns = (block, block) if block > 0 else (1 if block == 0 else weight.shape[0], weight.shape[1])
    blocks = weight.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
    scales = blocks.abs().amax((1, 3)) / 448
    values = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    weight.copy_((values.float() * scales[:, None, :, None]).flatten(2).flatten(0, 1))
    name = "weight_scale_inv" if block > 0 else "weight_scale"
    return {
        "weight": values.view(torch.uint8).flatten(2).flatten(0, 1).view(torch.float8_e4m3fn),
        name: scales if block > 0 else scales.flatten() if block < 0 else scales,
    }


def float_groups_config(strategy: str) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, "group_size": None}
    one = {"targets": ["Linear"], "weights": weights, "input_activations": weights | {"dynamic": True, "strategy": "token"}}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": one},
        "ignore": ["lm_head"],
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
    "fp8": (float8, 8, 128, True, {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}),
    "fp8-tensor": (float8, 8, -1, True, float_groups_config("tensor")),
    "fp8-channel": (float8, 8, 0, True, float_groups_config("channel")),
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
