"""Converts a GGUF file to an ordinary checkpoint directory: `python -m triptych_cli.models.convert_gguf FILE.gguf DIRECTORY`.

This is a separate program, because torch and the weights would stay in the memory of a supervisor that needs them only once.
transformers dequantizes quantized tensors; they are stored as bf16.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from triptych_common.model.gguf import read_gguf_header

#: `tokenizer.ggml.pre` -> how text is split before its vocabulary's merges apply. GGUF names only the splitting; transformers uses
#: GPT-2's for names that it does not know. The expressions are those of the families' own tokenizers.
_DIGITS = "digits"
_LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN_2 = _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLITS = {"smollm": _DIGITS, "gpt-2": None, "llama-bpe": _LLAMA_3, "llama3": _LLAMA_3, "llama-v3": _LLAMA_3, "qwen2": _QWEN_2,
           "deepseek-r1-qwen": _QWEN_2}  # fmt: skip


def convert(gguf: Path, out: Path) -> None:
    """Write weights, configuration, tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # Create a new model from the cleaned configuration: the loaded model would save that it was quantized.
    model = type(loaded)(type(loaded.config)(**clean_config(loaded.config.to_dict())))
    model.load_state_dict(loaded.state_dict())
    model.to(torch.bfloat16)
    model.save_pretrained(out)
    convert_tokenizer(gguf, model.config.max_position_embeddings).save_pretrained(out)


def convert_tokenizer(gguf: Path, max_length: int) -> Any:
    """The tokenizer of a GGUF file, as transformers' class."""
    from tokenizers import Regex, pre_tokenizers
    from transformers import AutoTokenizer

    split = check_split(read_gguf_header(gguf).metadata)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, model_max_length=max_length)
    if split is not None:
        first = (
            pre_tokenizers.Digits(individual_digits=True) if split == _DIGITS else pre_tokenizers.Split(Regex(split), "isolated")
        )
        bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split == _DIGITS)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_of])
    return tokenizer


def check_split(metadata: dict[str, Any]) -> str | None:
    """How text is split, an entry of _SPLITS; None is as transformers does it. Raises ValueError if the name is not known."""
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        return None
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in _SPLITS:
        raise ValueError(f"its vocabulary splits text by {name!r} (tokenizer.ggml.pre); known are {', '.join(_SPLITS)}")
    return _SPLITS[name]


def clean_config(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without entries about the GGUF file, with the original values of numbers that were stored in 32 bits."""
    kept = {key: _shortest(value) for key, value in config.items() if key != "quantization_config" and not key.startswith("_")}
    return kept | {"dtype": "bfloat16"}


def _shortest(value: Any) -> Any:
    """The shortest decimal number that is the same 32-bit number, e.g. 1e-05 for 9.999999747378752e-06."""
    import numpy as np

    if isinstance(value, dict):
        return {key: _shortest(item) for key, item in value.items()}
    return float(str(np.float32(value))) if isinstance(value, float) else value


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
