"""Writes a GGUF file of a given shape with random weights, for timing, with the tokenizer of another file.

    python -m benchmarks.peers.random_gguf TOKENIZER.gguf OUT.gguf --shape llama-1b --kind Q4_K_M

The mixture of types is that of llama.cpp's quantiser: with Q4_K_M, half of the value and down projections and the output head have
Q6_K. Texts of such a model mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from benchmarks.harness.sitting import new_parser


@dataclass(frozen=True)
class Shape:
    """Sizes of a model of Llama's architecture."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


SHAPES = {
    "llama-1b": Shape(2048, 8192, 16, 32, 8, 64),  # Llama-3.2-1B, without its larger vocabulary
    "llama-3b": Shape(3072, 8192, 28, 24, 8, 128),  # Llama-3.2-3B
    "qwen-0.6b": Shape(1024, 3072, 28, 16, 8, 128),
}
#: Type of a block -> where its numbers in fp16 are, and how large they are for weights of about 0.02.
_HALVES = {"Q4_K": {0: 1.2e-4, 2: 9e-4}, "Q6_K": {208: 1.2e-5}, "Q8_0": {0: 2.6e-4}, "Q4_0": {0: 4.5e-3}}


def random_blocks(kind: str, rows: int, columns: int, generator: np.random.Generator) -> np.ndarray:
    """[rows, bytes of a row] uint8."""
    weights, num_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = generator.integers(0, 256, (rows, columns // weights, num_bytes), np.uint8)
    for place, size in _HALVES[kind].items():
        raw[..., place : place + 2] = np.full((*raw.shape[:2], 1), size, np.float16).view(np.uint8)
    return raw.reshape(rows, -1)


def tensors(shape: Shape, vocab_size: int, kind: str) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and type of each tensor."""
    plain = "Q4_K" if kind == "Q4_K_M" else kind
    more = "Q6_K" if kind == "Q4_K_M" else kind
    found: list[tuple[str, tuple[int, ...], str]] = [
        ("token_embd.weight", (vocab_size, shape.hidden), more),
        ("output_norm.weight", (shape.hidden,), "F32"),
    ]
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for layer in range(shape.layers):
        finer = more if layer % 2 == 0 else plain
        sizes = {
            "attn_norm": ((shape.hidden,), "F32"),
            "ffn_norm": ((shape.hidden,), "F32"),
            "attn_q": ((query, shape.hidden), plain),
            "attn_k": ((key, shape.hidden), plain),
            "attn_v": ((key, shape.hidden), finer),
            "attn_output": ((shape.hidden, query), plain),
            "ffn_gate": ((shape.inner, shape.hidden), plain),
            "ffn_up": ((shape.inner, shape.hidden), plain),
            "ffn_down": ((shape.hidden, shape.inner), finer),
        }
        found += [(f"blk.{layer}.{name}.weight", size, form) for name, (size, form) in sizes.items()]
    return found


def write(tokenizer: Path, out: Path, shape: Shape, kind: str) -> None:
    """Write the file."""
    reader, generator = gguf.GGUFReader(tokenizer), np.random.default_rng(0)
    writer = gguf.GGUFWriter(out, "llama")
    sizes: dict[str, Any] = {
        "llama.embedding_length": shape.hidden, "llama.feed_forward_length": shape.inner, "llama.block_count": shape.layers,
        "llama.attention.head_count": shape.heads, "llama.attention.head_count_kv": shape.kv_heads,
        "llama.rope.dimension_count": shape.head_dim,
    }  # fmt: skip
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = sizes.pop(key, field.contents())
        item = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, field.types[0], sub_type=item)
    for key in ("llama.attention.key_length", "llama.attention.value_length"):
        writer.add_uint32(key, shape.head_dim)
    vocab_size = len(reader.fields["tokenizer.ggml.tokens"].data)
    for name, size, form in tensors(shape, vocab_size, kind):
        if form == "F32":
            writer.add_tensor(name, np.ones(size, np.float32))
        else:
            writer.add_tensor(name, random_blocks(form, size[0], size[1], generator), raw_dtype=gguf.GGMLQuantizationType[form])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="llama-1b")
    parser.add_argument("--kind", choices=["Q4_K_M", "Q8_0", "Q4_0"], default="Q4_K_M")
    args = parser.parse_args()
    write(args.tokenizer, args.out, SHAPES[args.shape], args.kind)


if __name__ == "__main__":
    main()
