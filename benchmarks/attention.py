"""How long attention alone takes, over what its speed depends on: sequences, contexts, heads, their groups, block sizes, threads.

    python -m benchmarks.attention                                   # the cases below, on all cores
    python -m benchmarks.attention --threads 1 --cases decode-8x2048 prompt-512

Each case computes 30 layers one after the other, so that no layer's keys are still in the processor's caches when it comes again,
on caches whose blocks lie in order. Prints the fastest and the median of the rounds; --output keeps them as JSON, which
benchmarks.compare takes.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from triptych_common.host.cores import num_usable_cores
from triptych_common.host.torch_env import set_torch_environment

set_torch_environment()  # as the engine does before torch is imported

import numpy as np  # noqa: E402
import torch  # noqa: E402
from triptych_engine.runner.attention.paged import AttentionMetadata, LayerShape  # noqa: E402
from triptych_engine.runner.cpu.attention import CpuAttention  # noqa: E402
from triptych_engine.runner.cpu.kernels import load_kernels  # noqa: E402

from benchmarks.harness.sitting import new_parser, write_results  # noqa: E402

NUM_LAYERS = 30


@dataclass(frozen=True)
class Case:
    """A step: so many sequences, each with `context` computed tokens and `new` ones."""

    num_seqs: int
    context: int
    new: int = 1
    num_q_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    block_size: int = 16


#: SmolLM2-135M's heads (9 and 3 of 64) unless the name says something else.
CASES = {f"decode-{seqs}x{context}": Case(seqs, context) for context in (128, 2048, 8000) for seqs in (1, 8)}
CASES |= {"decode-32x128": Case(32, 128), "decode-64x128": Case(64, 128), "prompt-512": Case(1, 0, 512)}
CASES |= {f"prompt-512-after-{context}": Case(1, context, 512) for context in (1500, 7500)}
_HEADS = {"group-1": (8, 8), "group-4": (32, 8), "group-7": (14, 2), "group-8": (32, 4)}
for _name, (_q, _kv) in _HEADS.items():
    CASES[f"{_name}, 32x512"] = Case(32, 512, num_q_heads=_q, num_kv_heads=_kv)
    CASES[f"{_name}, prompt-512"] = Case(1, 0, 512, num_q_heads=_q, num_kv_heads=_kv)
CASES["group-4, 128 dimensions, 8x2048"] = Case(8, 2048, num_q_heads=32, num_kv_heads=8, head_dim=128)
CASES["group-4, 128 dimensions, prompt-512"] = Case(1, 0, 512, num_q_heads=32, num_kv_heads=8, head_dim=128)
CASES["blocks of 32, decode-64x128"] = Case(64, 128, block_size=32)
CASES["blocks of 128, decode-8x2048"] = Case(8, 2048, block_size=128)


def metadata(case: Case) -> AttentionMetadata:
    """Where the case's tokens stand; sequence i has the i-th run of blocks."""
    num_keys = case.context + case.new
    num_blocks = -(-num_keys // case.block_size)
    table = np.arange(case.num_seqs * num_blocks, dtype=np.int32).reshape(case.num_seqs, num_blocks)
    positions = np.tile(np.arange(case.context, num_keys), case.num_seqs)
    rows = np.repeat(np.arange(case.num_seqs), case.new)
    return AttentionMetadata(
        query_start_loc=np.arange(case.num_seqs + 1, dtype=np.int32) * case.new,
        seq_lens=np.full(case.num_seqs, num_keys, np.int32),
        block_table=table,
        slots=table[rows, positions // case.block_size].astype(np.int64) * case.block_size + positions % case.block_size,
        positions=positions.astype(np.int32),
    )


def measure(case: Case, dtype: torch.dtype, num_rounds: int) -> list[float]:
    """Milliseconds of all layers, of each round."""
    kernels = load_kernels()
    if kernels is None:
        raise SystemExit("there are no CPU kernels here")
    backend, step = CpuAttention(kernels), metadata(case)
    shape = LayerShape(case.num_kv_heads, case.head_dim, case.head_dim)
    backend.allocate(dict.fromkeys(range(NUM_LAYERS), shape), step.block_table.size, case.block_size, dtype)
    for part in backend.blocks():
        part.normal_()
    query = torch.randn(step.num_tokens, case.num_q_heads, case.head_dim).to(dtype)
    key, value = (torch.randn(step.num_tokens, case.num_kv_heads, case.head_dim).to(dtype) for _ in range(2))
    times_ms = []
    for _ in range(num_rounds + 1):
        backend.begin(step)
        started = time.perf_counter()
        for layer in range(NUM_LAYERS):
            backend.forward(layer, query, key, value, scaling=case.head_dim**-0.5, window=0, softcap=0.0, sinks=None)
        times_ms.append((time.perf_counter() - started) * 1e3)
    return times_ms[1:]


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="of queries, values and cache")
    parser.add_argument("--threads", type=int, default=num_usable_cores())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, help="a JSON file for the times of all rounds")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {}
    with torch.inference_mode():
        for name in options.cases:
            times_ms = measure(CASES[name], getattr(torch, options.dtype), options.rounds)
            results[name] = {**asdict(CASES[name]), "ms": times_ms}
            print(f"{name:36s} {min(times_ms):8.2f} ms, median {statistics.median(times_ms):8.2f}", flush=True)
    if options.output:
        write_results(options.output, {"dtype": options.dtype, "threads": options.threads, "cases": results})


if __name__ == "__main__":
    main()
