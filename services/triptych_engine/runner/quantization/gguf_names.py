"""Which tensors of a GGUF file are which parameters of transformers' models, and what llama.cpp's converter did to them."""

from __future__ import annotations

from collections.abc import Iterable

import gguf
import numpy as np
from transformers import PretrainedConfig

#: Divisors of the frequencies of rotary embeddings, which the converter computes for Llama 3.
ROPE_FACTORS = "rope_freqs.weight"


def tensor_names(architecture: str, num_layers: int, parameters: Iterable[str]) -> dict[str, str]:
    """Name of each parameter -> name of its tensor. Parameters that the format does not know are left out."""
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, num_layers)
    found = {}
    for parameter in parameters:
        module, _, kind = parameter.rpartition(".")
        name = names.get_name(module)
        if name is not None:
            found[parameter] = f"{name}.{kind}"
    return found


def row_order(architecture: str, tensor: str, config: PretrainedConfig, num_rows: int) -> np.ndarray | None:
    """Which row of a tensor is each row of the weight; None if they are in order.

    Llama's rotary embeddings turn pairs of neighbours in llama.cpp and pairs of halves in transformers, so the converter has
    interleaved the halves of each head of queries and keys.
    """
    if architecture != "llama" or (".attn_q." not in tensor and ".attn_k." not in tensor):
        return None
    num_heads = config.num_attention_heads if ".attn_q." in tensor else config.num_key_value_heads
    return np.arange(num_rows).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(-1)
