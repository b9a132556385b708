"""Decode and prefill on a GPU, beside what the device can do and beside transformers' own continuous batching.

    python benchmarks/gpu.py                      # needs a CUDA device
    python benchmarks/gpu.py --device cpu --tiny  # the same code on a tiny model, to see that it runs: its figures mean nothing

The model has random weights and the shape of Llama 3.2 1B, and is made here. The engine's scheduler, step loop and runner run in
this process, without gRPC. The ceilings are measured in the same call: the rate of a copy within the device's memory, reading and
writing counted, and that of a large bfloat16 matrix product. The aim is 70 % of the first in decode. Results go to
benchmarks/results/<date>-gpu.json, those of a tiny model only where --output says.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from gpu_arithmetic import Ceilings, Decode, ModelSize, measure_decode
from machine import describe_commit, describe_machine, describe_versions
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig
from triptych_engine.core import EngineCore, Load
from triptych_engine.executor.in_process import InProcessExecutor
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.scheduling.kv_cache import KVCacheManager
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import Request, SamplingParams
from triptych_engine.scheduling.scheduler import Scheduler

RESULTS = Path(__file__).parent / "results"
TARGET_SHARE = 0.7
_FULL = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
_FULL |= {"num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 8192}
_TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
_TINY |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 512}
_BLOCK_SIZE = 256


def make_model(folder: Path, *, tiny: bool, dtype: torch.dtype) -> LlamaConfig:
    """A checkpoint with random weights."""
    config = LlamaConfig(**(_TINY if tiny else _FULL), tie_word_embeddings=True, eos_token_id=None, bos_token_id=None)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    return config


def size_of(config: LlamaConfig, dtype: torch.dtype) -> ModelSize:
    return ModelSize(
        config.num_hidden_layers,
        config.hidden_size,
        config.intermediate_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.vocab_size,
        dtype.itemsize,
    )


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fastest_s(device: torch.device, function: Callable[[], object], repeats: int = 10) -> float:
    """The shortest of several runs, after one that does not count, in seconds."""
    function()
    times = []
    for _ in range(repeats):
        synchronize(device)
        started = time.perf_counter()
        function()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times)


def measure_ceilings(device: torch.device, *, tiny: bool) -> Ceilings:
    num_bytes, edge = (1 << 20, 128) if tiny else (4 << 30, 8192)
    source, target = torch.zeros(2, num_bytes, dtype=torch.uint8, device=device)
    copy_s = fastest_s(device, lambda: target.copy_(source))
    a, b = (torch.randn(edge, edge, device=device).bfloat16() for _ in range(2))
    product_s = fastest_s(device, lambda: a @ b)
    return Ceilings(2 * num_bytes / copy_s, 2 * edge**3 / product_s)


class Engine:
    """Scheduler, step loop and runner, on this thread."""

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype, args: argparse.Namespace) -> None:
        self._args = args
        self._config = RunnerConfig(
            path,
            "benchmark",
            max_model_len=args.prompt_len + args.num_tokens + 1,
            max_num_seqs=max(args.batch_sizes),
            max_num_batched_tokens=8192,
            block_size=_BLOCK_SIZE,
            kv_cache_bytes=args.kv_cache_gb << 30,
            dtype=dtype,
            device=device,
            cuda_graphs=args.cuda_graphs,
        )
        self._executor = InProcessExecutor(self._config)
        self._executor.load()
        self.runner = self._executor.runner

    def generate(self, prompts: Sequence[list[int]], num_tokens: int) -> tuple[float, list[list[float]]]:
        """When it began, and when each token of each sequence came, in seconds."""
        times: dict[str, list[float]] = {f"r{i}": [] for i in range(len(prompts))}

        def note(step: int, outputs: Sequence[SequenceOutput], load: Load) -> None:
            now = time.perf_counter()
            for output in outputs:
                times[output.request_id] += [now] * len(output.token_ids)
                if output.error is not None:
                    raise output.error

        scheduler = Scheduler(
            KVCacheManager(self.runner.num_blocks, _BLOCK_SIZE, enable_prefix_caching=False),
            max_num_seqs=self._config.max_num_seqs,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
            max_waiting=len(prompts),
            max_model_len=self._config.max_model_len,
        )
        core = EngineCore(scheduler, self._executor, note, async_scheduling=self._args.async_scheduling)
        started = time.perf_counter()
        for request_id, prompt in zip(times, prompts, strict=True):
            scheduler.add(Request(request_id, prompt, SamplingParams(num_tokens, temperature=0.0)))
        while scheduler.has_work or core.num_in_flight:
            core.step()
        return started, list(times.values())


def make_prompts(count: int, length: int, vocab_size: int) -> list[list[int]]:
    return [[(7919 * (i + 1) * (j + 1)) % vocab_size for j in range(length)] for i in range(count)]


def measure_engine(engine: Engine, size: ModelSize, ceilings: Ceilings, args: argparse.Namespace) -> dict[str, Any]:
    decodes = []
    for batch_size in args.batch_sizes:
        prompts = make_prompts(batch_size, args.prompt_len, size.vocab_size)
        runs = [measure_decode(engine.generate(prompts, args.num_tokens)[1], args.prompt_len) for _ in range(args.repeats)]
        decodes.append(_decode_figures(sorted(runs, key=lambda run: run.tokens_per_s)[len(runs) // 2], size, ceilings))
    prompts = make_prompts(args.num_prefills, args.prompt_len, size.vocab_size)
    elapsed = []
    for _ in range(args.repeats + 1):
        started, times = engine.generate(prompts, 1)
        elapsed.append(max(moment for one in times for moment in one) - started)
    prefill_s = statistics.median(elapsed[1:])
    flops_per_s = args.num_prefills * size.prefill_flops(args.prompt_len) / prefill_s
    prefill = {
        "num_prompts": args.num_prefills,
        "prompt_len": args.prompt_len,
        "tokens_per_s": args.num_prefills * args.prompt_len / prefill_s,
        "share_of_matrix_rate": flops_per_s / ceilings.flops_per_s,
    }
    return {"decode": decodes, "prefill": prefill}


def _decode_figures(decode: Decode, size: ModelSize, ceilings: Ceilings) -> dict[str, float]:
    return asdict(decode) | {"step_ms": decode.step_s * 1e3, "share_of_bandwidth": decode.bandwidth_share(size, ceilings)}


def measure_peer(path: Path, device: torch.device, dtype: torch.dtype, size: ModelSize, args: argparse.Namespace) -> dict[str, Any]:
    """transformers' continuous batching on the same prompts; with an `error` where this version, or this device, has none."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device).eval()
    try:
        from transformers import ContinuousBatchingConfig
    except ImportError:
        return {"error": "this version of transformers has no continuous batching"}
    config = GenerationConfig(do_sample=False, max_new_tokens=args.num_tokens, eos_token_id=-1, pad_token_id=0)
    # By default it takes most of the memory, which on a GPU is as it should be.
    own = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64) if args.tiny else ContinuousBatchingConfig()
    decodes = []
    for batch_size in args.batch_sizes:
        prompts = make_prompts(batch_size, args.prompt_len, size.vocab_size)
        try:
            runs = []
            for _ in range(args.repeats + 1):  # the first compiles and records
                outputs = model.generate_batch(
                    prompts, generation_config=config, continuous_batching_config=own, record_timestamps=True
                )
                runs.append(measure_decode([output.timestamps for output in outputs.values()], args.prompt_len))
        # A peer's own trouble, of whatever kind, is part of the result.
        except Exception as error:
            return {"decode": decodes, "error": f"batch of {batch_size}: {type(error).__name__}: {error}"}
        decodes.append(asdict(sorted(runs[1:], key=lambda run: run.tokens_per_s)[len(runs[1:]) // 2]))
    return {"decode": decodes}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure everything."""
    device, dtype = torch.device(args.device), torch.float32 if args.device == "cpu" else torch.bfloat16
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    results: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/gpu.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": describe_commit(),
        "machine": describe_machine() | {"device": name},
        "versions": describe_versions(),
        "target_share_of_bandwidth": TARGET_SHARE,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        config = make_model(path, tiny=args.tiny, dtype=dtype)
        size, ceilings = size_of(config, dtype), measure_ceilings(device, tiny=args.tiny)
        results |= {"model": asdict(size), "ceilings": asdict(ceilings)}
        engine = Engine(path, device, dtype, args)
        results["engine"] = measure_engine(engine, size, ceilings, args)
        del engine
        results["transformers"] = measure_peer(path, device, dtype, size, args)
    return results


def describe(results: dict[str, Any]) -> str:
    ceilings, prefill = results["ceilings"], results["engine"]["prefill"]
    lines = [
        f"{results['machine']['device']}: copies {ceilings['bytes_per_s'] / 1e9:.1f} GB/s, "
        f"multiplies {ceilings['flops_per_s'] / 1e12:.2f} TFLOP/s"
    ]
    peers = {one["batch_size"]: one for one in results["transformers"].get("decode", [])}
    for one in results["engine"]["decode"]:
        peer = peers.get(one["batch_size"])
        beside = f"; transformers {peer['tokens_per_s']:.0f} tokens/s" if peer else ""
        verdict = "reached" if one["share_of_bandwidth"] >= TARGET_SHARE else "not reached"
        lines.append(
            f"decode of {one['batch_size']}: {one['tokens_per_s']:.0f} tokens/s, {one['step_ms']:.2f} ms a step, "
            f"{one['share_of_bandwidth']:.0%} of the bandwidth (aim {TARGET_SHARE:.0%}: {verdict}){beside}"
        )
    lines.append(f"prefill: {prefill['tokens_per_s']:.0f} tokens/s, {prefill['share_of_matrix_rate']:.0%} of the matrix rate")
    if "error" in results["transformers"]:
        lines.append(f"transformers: {results['transformers']['error']}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    print(describe(results))
    output = args.output or (None if args.tiny else RESULTS / f"{results['date']}-gpu.json")
    if output is not None:
        output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
