"""Decode and prefill on a GPU, beside what the device can do.

    python -m benchmarks.gpu                      # needs a CUDA device
    python -m benchmarks.gpu --device cpu --tiny  # the same code on a tiny model, to see that it runs: its figures mean nothing

The model has random weights and the shape of Llama 3.2 1B, and is made here. The engine's scheduler, step loop and runner run in
this process, without gRPC. The ceilings are measured in the same call: the rate of a copy within the device's memory, reading and
writing counted, and that of a large bfloat16 matrix product. The aim is 70 % of the first in decode. Results go to
benchmarks/results/<date>-gpu.json, those of a tiny model only where --output says.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from triptych_engine.settings import EngineSettings

from benchmarks.engine.local import LocalEngine
from benchmarks.harness.sitting import RESULTS, describe, new_parser, write_results

TARGET_SHARE = 0.7
_TIMEOUT_S = 600.0
_FULL = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
_FULL |= {"num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 8192}
_TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
_TINY |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 512}


@dataclass(frozen=True)
class ModelSize:
    """What a step has to read and to compute at least.

    Attributes:
        num_weights: values in all matrices, the output head's among them.
        kv_values_per_token: values that the cache keeps of a token.
    """

    num_weights: int
    kv_values_per_token: int
    bytes_per_value: int

    def decode_bytes(self, batch_size: int, context: float) -> float:
        """What a decode step reads: all matrices once, and the keys and values of each sequence. Activations are left out."""
        return (self.num_weights + batch_size * context * self.kv_values_per_token) * self.bytes_per_value

    def prefill_flops(self, num_tokens: int) -> float:
        """What the products of so many tokens take, a multiplication and an addition being two. Attention is left out."""
        return 2.0 * self.num_weights * num_tokens


@dataclass(frozen=True)
class Decode:
    """While all sequences of a batch decode."""

    batch_size: int
    tokens_per_s: float
    mean_context: float

    @property
    def step_s(self) -> float:
        return self.batch_size / self.tokens_per_s

    def bytes_per_s(self, size: ModelSize) -> float:
        """Bytes that had to be read per second."""
        return size.decode_bytes(self.batch_size, self.mean_context) / self.step_s


def measure_decode(token_times: Sequence[Sequence[float]], prompt_len: int) -> Decode:
    """The rate from the moment at which every sequence has its first token to that at which the first one ends.

    Args:
        token_times: of each sequence, when each of its tokens came, in seconds.

    Raises:
        ValueError: there is no such time.
    """
    start, end = max(times[0] for times in token_times), min(times[-1] for times in token_times)
    # The context of a token's step: the prompt, and the output before it.
    contexts = [prompt_len + index for times in token_times for index, moment in enumerate(times) if start < moment <= end]
    if not contexts or start >= end:
        raise ValueError("the sequences did not decode at the same time; generate more tokens")
    return Decode(len(token_times), len(contexts) / (end - start), sum(contexts) / len(contexts))


def make_model(folder: Path, *, tiny: bool, dtype: torch.dtype) -> ModelSize:
    """A checkpoint with random weights."""
    config = LlamaConfig(**(_TINY if tiny else _FULL), tie_word_embeddings=True, eos_token_id=None, bos_token_id=None)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder)
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() > 1)  # the head is the embedding
    return ModelSize(matrices, 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim, dtype.itemsize)


def fastest_s(device: torch.device, function: Callable[[], object], repeats: int = 10) -> float:
    """The shortest of several runs, after one that does not count, in seconds."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times[1:])


def measure_ceilings(device: torch.device, *, tiny: bool) -> dict[str, float]:
    """What the device reaches: bytes copied, and operations of a product, per second."""
    num_bytes, edge = (1 << 20, 128) if tiny else (4 << 30, 8192)
    source, target = torch.zeros(2, num_bytes, dtype=torch.uint8, device=device)
    a, b = (torch.randn(edge, edge, device=device).bfloat16() for _ in range(2))
    copy_s, product_s = fastest_s(device, lambda: target.copy_(source)), fastest_s(device, lambda: a @ b)
    return {"bytes_per_s": 2 * num_bytes / copy_s, "flops_per_s": 2 * edge**3 / product_s}


def make_prompts(count: int, length: int, vocab_size: int) -> list[list[int]]:
    return [[(7919 * (i + 1) * (j + 1)) % vocab_size for j in range(length)] for i in range(count)]


def measure_engine(path: Path, size: ModelSize, ceilings: dict[str, float], args: argparse.Namespace) -> dict[str, Any]:
    """This engine; its figures beside the ceilings."""
    settings = EngineSettings(
        model=str(path),
        device=args.device,
        dtype="float32" if args.device == "cpu" else "bfloat16",
        max_model_len=args.prompt_len + args.num_tokens + 1,
        max_num_seqs=max(*args.batch_sizes, args.num_prefills),
        max_num_batched_tokens=8192,
        kv_cache_memory=args.kv_cache_gb << 30,
        cuda_graphs=args.cuda_graphs,
        async_scheduling=args.async_scheduling,
        enable_prefix_caching=False,
        prompt_lookup=False,
    )
    engine, decodes, elapsed = LocalEngine(settings), [], []

    def generate(count: int, num_tokens: int) -> list[list[float]]:
        prompts = make_prompts(count, args.prompt_len, engine.vocab_size)
        answers, failures = engine.run(prompts, count, num_tokens, _TIMEOUT_S)
        if failures:
            raise RuntimeError(failures[0])
        return [answer.pieces_s for answer in answers]

    try:
        for batch_size in args.batch_sizes:
            runs = [measure_decode(generate(batch_size, args.num_tokens), args.prompt_len) for _ in range(args.repeats)]
            decode = sorted(runs, key=lambda run: run.tokens_per_s)[len(runs) // 2]
            share = decode.bytes_per_s(size) / ceilings["bytes_per_s"]
            decodes.append(asdict(decode) | {"step_ms": decode.step_s * 1e3, "share_of_bandwidth": share})
        for _ in range(args.repeats + 1):
            started = time.perf_counter()
            elapsed.append(max(max(times) for times in generate(args.num_prefills, 1)) - started)
    finally:
        engine.stop()
    num_tokens, seconds = args.num_prefills * args.prompt_len, statistics.median(elapsed[1:])
    share = size.prefill_flops(num_tokens) / seconds / ceilings["flops_per_s"]
    return {"decode": decodes, "prefill": {"tokens_per_s": num_tokens / seconds, "share_of_matrix_rate": share}}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure everything."""
    device, dtype = torch.device(args.device), torch.float32 if args.device == "cpu" else torch.bfloat16
    results = describe("gpu") | {"target_share_of_bandwidth": TARGET_SHARE}
    results["machine"]["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        size = make_model(path, tiny=args.tiny, dtype=dtype)
        results["ceilings"] = measure_ceilings(device, tiny=args.tiny)
        results["engine"] = measure_engine(path, size, results["ceilings"], args)
    return results


def describe_figures(results: dict[str, Any]) -> str:
    ceilings, prefill = results["ceilings"], results["engine"]["prefill"]
    rates = f"copies {ceilings['bytes_per_s'] / 1e9:.1f} GB/s, multiplies {ceilings['flops_per_s'] / 1e12:.2f} TFLOP/s"
    lines = [f"{results['machine']['device']}: {rates}"]
    for one in results["engine"]["decode"]:
        verdict = "reached" if one["share_of_bandwidth"] >= TARGET_SHARE else "not reached"
        lines.append(
            f"decode of {one['batch_size']}: {one['tokens_per_s']:.0f} tokens/s, {one['step_ms']:.2f} ms a step,"
            f" {one['share_of_bandwidth']:.0%} of the bandwidth (aim {TARGET_SHARE:.0%}: {verdict})"
        )
    lines.append(f"prefill: {prefill['tokens_per_s']:.0f} tokens/s, {prefill['share_of_matrix_rate']:.0%} of the matrix rate")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to see that everything runs")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 64], metavar="N")
    parser.add_argument("--prompt-len", type=int, default=512)
    parser.add_argument("--num-tokens", type=int, default=256, help="output tokens of each sequence")
    parser.add_argument("--num-prefills", type=int, default=32, help="prompts of the prefill run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kv-cache-gb", type=int, default=8)
    parser.add_argument("--cuda-graphs", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--async-scheduling", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--output", type=Path, help="file for the results")
    args = parser.parse_args(argv)
    if args.device != "cpu" and not torch.cuda.is_available():
        print("this needs a CUDA device, and torch sees none; --device cpu --tiny tries the code", file=sys.stderr)
        return 1
    if args.device == "cpu" and not args.tiny:
        parser.error("on a CPU only --tiny makes sense")
    results = run(args)
    print(describe_figures(results))
    output = args.output or (None if args.tiny else RESULTS / f"{results['date']}-gpu.json")
    if output is not None:
        write_results(output, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
