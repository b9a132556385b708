"""Converts a GGUF file to an ordinary checkpoint directory: `python -m triptych_cli.models.convert_gguf FILE.gguf DIRECTORY`.

This is a separate program, because torch and the weights would stay in the memory of a supervisor that needs them only once.
transformers dequantizes quantized tensors; they are stored as bf16.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

#: `tokenizer.ggml.pre` of vocabularies that split numbers into digits. GGUF only names the splitting; transformers uses GPT-2's.
_SPLITS_DIGITS = ("smollm",)


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
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, model_max_length=max_length)
    field = GGUFReader(gguf).get_field("tokenizer.ggml.pre")
    if field is not None and field.contents() in _SPLITS_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return tokenizer


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
