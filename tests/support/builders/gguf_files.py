"""GGUF files of tiny models with random weights, and the same models in transformers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config, Qwen3MoeConfig
from transformers.convert_slow_tokenizer import bytes_to_unicode
from triptych_engine.runner.quantization.gguf_blocks import BLOCK_TYPES

from support.builders.engine import a_tiny_llama_config

#: Places of numbers in fp16 in a block.
_HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
_SIZES = {
    "vocab_size": 96, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
#: Architecture in GGUF -> a tiny model of it. Rows of 256 weights suit all types.
CONFIGS: dict[str, Callable[..., PretrainedConfig]] = {
    "llama": lambda **changes: a_tiny_llama_config(head_dim=64, **(_SIZES | changes)),
    "qwen2": lambda **changes: Qwen2Config(**(_SIZES | changes)),
    "qwen3": lambda **changes: Qwen3Config(head_dim=64, **(_SIZES | changes)),
    "qwen3moe": lambda **changes: Qwen3MoeConfig(
        head_dim=64, moe_intermediate_size=256, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, **(_SIZES | changes)
    ),
}


def random_blocks(kind: str, rows: int, columns: int, generator: np.random.Generator) -> np.ndarray:
    """Raw bytes of a weight, [rows, bytes of a row]. Its values are of about the size of a real model's."""
    form = BLOCK_TYPES[kind]
    raw = generator.integers(0, 256, (rows, columns // form.block, form.num_bytes), np.uint8)
    steps = 2.0 ** (form.format.bits - 1) * {0: 1, 1: 32, 2: 96}[form.format.scales]  # 6 bits of scales, or 8
    for place in _HALVES[kind]:
        numbers = generator.uniform(0.5, 1.5, raw.shape[:2]) * 0.2 / steps
        if place:  # a minimum: about half of the range below zero
            numbers *= steps / 32 if form.format.scales else -steps
        raw[..., place : place + 2] = numbers.astype(np.float16)[..., None].view(np.uint8)
    if kind == "Q6_K":  # scales of similar size, as in real files
        scales = generator.integers(64, 128, (*raw.shape[:2], 16)) * generator.choice([-1, 1], (*raw.shape[:2], 16))
        raw[..., 192:208] = scales.astype(np.int8).view(np.uint8)
    return raw.reshape(rows, -1)


def write_gguf(
    file: Path,
    architecture: str,
    kinds: Sequence[str] = ("Q4_0",),
    *,
    tied: bool = False,
    seed: int = 0,
    pre: str = "",
    metadata: Mapping[str, float | str] | None = None,
) -> PreTrainedModel:
    """Write a model's file. Its quantised tensors have the given types in turn. Returns the model as transformers computes it.

    Args:
        pre: how the vocabulary splits text (`tokenizer.ggml.pre`), of a tokenizer of bytes in the file; empty for no tokenizer.
        metadata: more of it: numbers with a fraction, and strings.
    """
    config = CONFIGS[architecture](tie_word_embeddings=tied, **({"vocab_size": 260} if pre else {}))
    generator, turns = np.random.default_rng(seed), itertools.cycle(kinds)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    writer = gguf.GGUFWriter(file, architecture)
    _write_config(writer, architecture, config)
    if pre:
        _write_tokenizer(writer, pre)
    for key, value in (metadata or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(key, value)  # type: ignore[arg-type]
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)

    def random_weight(shape: Sequence[int]) -> tuple[str, np.ndarray, np.ndarray]:
        kind = next(turns)
        raw = random_blocks(kind, int(np.prod(shape[:-1])), shape[-1], generator).reshape(*shape[:-1], -1)
        return kind, raw, gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])

    for parameter_name, parameter in model.named_parameters():
        module, _, suffix = parameter_name.rpartition(".")
        if parameter.dim() == 3:
            parts = ("gate_proj", "up_proj") if suffix == "gate_up_proj" else ("down_proj",)
            for part, values in zip(parts, parameter.chunk(len(parts), 1), strict=True):
                kind, raw, weight = random_weight(values.shape)
                values.copy_(torch.from_numpy(weight))
                writer.add_tensor(f"{names.get_name(f'{module}.{part}')}.weight", raw, raw_dtype=gguf.GGMLQuantizationType[kind])
            continue
        name = f"{names.get_name(module)}.{suffix}"
        if "ffn_gate_inp" in name:  # the router, which stays as it is
            torch.nn.init.normal_(parameter)
            writer.add_tensor(name, parameter.numpy())
            continue
        if parameter.dim() == 1:
            parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
            writer.add_tensor(name, parameter.numpy())
            continue
        kind, raw, weight = random_weight(parameter.shape)
        parameter.copy_(torch.from_numpy(_unpermuted(architecture, name, config, weight)))
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _unpermuted(architecture: str, name: str, config: PretrainedConfig, values: np.ndarray) -> np.ndarray:
    """The inverse of what llama.cpp's convert_hf_to_gguf.py (LlamaModel.permute) does to a weight."""
    if architecture != "llama" or ("attn_q." not in name and "attn_k." not in name):
        return values
    heads = config.num_attention_heads if "attn_q." in name else config.num_key_value_heads
    half = len(values) // heads // 2
    given = torch.arange(len(values))
    # What the converter does: reshape(heads, 2, half).swapaxes(1, 2).
    permuted = given.view(heads, 2, half).transpose(1, 2).reshape(-1)
    result = np.empty_like(values)
    result[permuted.numpy()] = values
    return result


def _write_config(writer: gguf.GGUFWriter, architecture: str, config: PretrainedConfig) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(
        config.head_dim if architecture != "qwen2" else config.hidden_size // config.num_attention_heads
    )
    writer.add_vocab_size(config.vocab_size)
    if isinstance(config, Qwen3MoeConfig):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _write_tokenizer(writer: gguf.GGUFWriter, pre: str) -> None:
    """A vocabulary of bytes, of pairs of digits, and of two control tokens."""
    tokens = [*bytes_to_unicode().values(), "12", "34", "<s>", "</s>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * 258 + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_merges(["1 2", "3 4"])
    writer.add_bos_token_id(258)
    writer.add_eos_token_id(259)
    writer.add_eot_token_id(257)
    writer.add_chat_template("{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}")


def save_gguf_model(folder: Path, architecture: str, kinds: Sequence[str] = ("Q4_0",), **options: bool) -> PreTrainedModel:
    """A model directory as `triptych fetch` prepares it, without a tokenizer. Returns the model as transformers computes it."""
    folder.mkdir(exist_ok=True)
    model = write_gguf(folder / "model.gguf", architecture, kinds, **options)
    model.config.save_pretrained(folder)
    return model
