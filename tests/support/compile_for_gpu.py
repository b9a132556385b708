"""Compiles the Triton kernels for a GPU that is not here; prints what each of them takes, as JSON.

python -m support.compile_for_gpu 90 232448    # compute capability, shared memory of a thread block in bytes
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton
from triptych_engine.runner.attention.paged import LayerShape
from triptych_engine.runner.cuda import paged_kernels
from triptych_engine.runner.cuda.kernels import cache, experts, layers, paged_attention
from triptych_engine.runner.cuda.moe import tile_constants
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}
_POINTERS = {
    "partial_out": "*fp32", "partial_sums": "*fp32", "block_table": "*i32", "blocks_per_row": "*i32", "seq_lens": "*i32",
    "sequences": "*i32", "tokens": "*i32", "query_start_loc": "*i32", "positions": "*i32", "key_ends": "*i32",
    "tile_sequences": "*i32", "tile_tokens": "*i32", "slots": "*i64", "cos": "*fp32", "sin": "*fp32", "q_weight": "*fp32",
    "k_weight": "*fp32", "weight": "*fp32", "added_weight": "*fp32", "shares": "*fp32", "counts": "*i32",
    "pairs": "*i32", "total": "*fp32", "sinks": "*bf16",
}  # fmt: skip
_NUMBERS = {"scaling": "fp32", "softcap": "fp32", "eps": "fp32", "added_eps": "fp32"}  # others are i32


def compiled(kernel: Any, constants: dict[str, Any], dtype: torch.dtype, capability: int) -> dict[str, int]:
    """Shared memory and stack of a thread block, in bytes, and registers of a thread."""
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages") if name in constants}
    tensors = {"query", "k_cache", "v_cache", "out", "x", "added", "gate_up", "qkv", "key", "value", "logits", "matrices"}
    signature = {}
    for name in kernel.arg_names:
        own = _TYPES[dtype] if name in tensors else _POINTERS.get(name) or _NUMBERS.get(name, "i32")
        signature[name] = "constexpr" if name in constants else own
    names = kernel.arg_names
    # What Triton knows of the arguments of a real launch.
    aligned = {name for name, kind in signature.items() if kind.startswith("*") or name.endswith("stride")}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    usage = _resources(binary.asm["cubin"])
    return {"shared": binary.metadata.shared, "registers": usage["REG"], "stack": usage["STACK"]}


def _resources(cubin: bytes) -> dict[str, int]:
    program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([str(program), "-res-usage", file.name], capture_output=True, text=True, check=True)
    return {name: int(number) for name, number in re.findall(r"(\w+):(\d+)", done.stdout)}


def cases(shared_memory: int) -> Iterator[tuple[str, Any, dict[str, Any], torch.dtype]]:
    """Name, kernel, constants and dtype: heads as of Llama, Gemma and Gemma 4, and float32."""
    for dim, group, dtype in ((64, 4, torch.bfloat16), (128, 4, torch.bfloat16), (256, 8, torch.bfloat16), (512, 8, torch.bfloat16),
                              (128, 4, torch.float32)):  # fmt: skip
        shape = LayerShape(2, dim, dim)
        layer = paged_kernels.Layer(torch.device("cpu"), dtype, 2 * group, shape, 16, 1.0, 0, 0.0, None)
        sizes = shape, dtype.itemsize, group, shared_memory
        name = f"{dim} {str(dtype).removeprefix('torch.')}"
        decode = paged_kernels._constants(paged_kernels.decode_tiles(*sizes)) | layer.constants() | {"sinks": None}
        yield f"decode {name}", paged_attention.decode_kernel, decode | {"IS_SPLIT": True}, dtype
        prompt = paged_kernels._constants(paged_kernels.prompt_tiles(*sizes)) | layer.constants() | {"sinks": None}
        yield f"prompt {name}", paged_attention.prompt_kernel, prompt, dtype
    layer = replace(layer, window=100, softcap=30.0, sinks=torch.zeros(1), cache_dtype=torch.bfloat16)
    options = paged_kernels._constants(paged_kernels.prompt_tiles(shape, 2, group, shared_memory)) | layer.constants()
    yield "prompt 128 bfloat16 with options", paged_attention.prompt_kernel, options, torch.bfloat16
    norm = {"SIZE": 4096, "BLOCK": 4096, "NUM_ADDED": 1, "HAS_SHARES": False, "IS_ADDED_NORMED": False, "HAS_OUT": True,
            "num_warps": 8}  # fmt: skip
    yield "norm", layers.rms_norm_kernel, norm | {"shares": None, "added_weight": None}, torch.bfloat16
    sandwich = {"SIZE": 5376, "BLOCK": 8192, "IS_ADDED_NORMED": True, "shares": None}
    yield "sandwich norm", layers.rms_norm_kernel, norm | sandwich, torch.bfloat16
    mixture = {"NUM_ADDED": 8, "HAS_SHARES": True, "added_weight": None}
    yield "norm of a mixture", layers.rms_norm_kernel, norm | mixture, torch.bfloat16
    yield "silu", layers.act_mul_kernel, {"SIZE": 14336, "BLOCK": 1024, "IS_GELU": False}, torch.bfloat16
    yield "gelu", layers.act_mul_kernel, {"SIZE": 14336, "BLOCK": 1024, "IS_GELU": True}, torch.bfloat16
    rope = {"NUM_Q_HEADS": 32, "NUM_KV_HEADS": 8, "HEAD_DIM": 128, "V_HEAD_DIM": 128, "ROTARY_DIM": 128, "BLOCK": 128, "HEADS": 8}
    yield "rope", layers.rope_kernel, rope | {"HAS_NORMS": True, "HAS_CACHE": True}, torch.bfloat16
    route = {"NUM_EXPERTS": 128, "BLOCK": 128, "TOP_K": 8, "IS_NORMALIZED": True, "num_warps": 1}
    yield "route", experts.route_kernel, route, torch.bfloat16
    sizes = {"NUM_EXPERTS": 128, "PADDED_EXPERTS": 128, "IS_GELU": False}
    for rows, dtype in ((16, torch.bfloat16), (64, torch.bfloat16), (64, torch.float32)):
        tiles, name = tile_constants(rows, dtype), f"{rows} {str(dtype).removeprefix('torch.')}"
        gate_up = sizes | tiles | {"PAIRS_PER_ROW": 8, "IN": 2048, "OUT": 768, "IS_GATED": True}
        yield f"experts gate up {name}", experts.experts_kernel, gate_up, dtype
        down = sizes | tiles | {"PAIRS_PER_ROW": 1, "IN": 768, "OUT": 2048, "IS_GATED": False}
        yield f"experts down {name}", experts.experts_kernel, down, dtype
    write = {"NUM_KV_HEADS": 8, "HEAD_DIM": 128, "V_HEAD_DIM": 128, "BLOCK": 1024}
    yield "write", cache.write_kernel, write, torch.bfloat16


if __name__ == "__main__":
    target, limit = map(int, sys.argv[1:])
    print(json.dumps({name: compiled(kernel, constants, dtype, target) for name, kernel, constants, dtype in cases(limit)}))
