"""Decode, prefill and both together on a GPU, beside what the device can do.

    python -m benchmarks.gpu                            # needs a CUDA device
    python -m benchmarks.gpu --device cpu --shapes tiny --prefill-len 100 --long-prompt-len 100    # that it runs

Models have random weights and the shapes of known ones, and are made here. The engine's scheduler, step loop and runner run in
this process, without gRPC. The ceilings are measured in the same call: the rate of a copy within the device's memory, reading and
writing counted, and that of a large bfloat16 matrix product. The aims are 70 % of the first in decode, and 60 % of the second in
prefill. Results go to benchmarks/results/<date>-gpu.json, those of the tiny shape only where --output says.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config

from benchmarks.engine.local import EngineCore, EngineSettings, LoadedEngine, Request, SamplingParams, finish, load_engine
from benchmarks.harness.sitting import RESULTS, describe, new_parser, write_results

#: Long prompts that come while --mixed sequences decode.
_NUM_LONG_PROMPTS = 3
_NUM_WARM_UP = 10
_LLAMA = {
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 16384,
    "eos_token_id": None,
    "bos_token_id": None,
}
#: What a model in the memory of the machine is written to, if it is there.
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


def shapes() -> dict[str, PretrainedConfig]:
    """The shapes of Llama 3.2 1B, Llama 3.1 8B and the language model of Qwen2.5-VL 7B; and one for tests."""
    return {
        "llama-1b": LlamaConfig(
            hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, head_dim=64,
            tie_word_embeddings=True, **_LLAMA,
        ),
        "llama-8b": LlamaConfig(
            hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, head_dim=128, **_LLAMA,
        ),
        "qwen2.5-7b": Qwen2Config(
            hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
            vocab_size=152064, max_position_embeddings=16384, eos_token_id=None, bos_token_id=None,
        ),
        "tiny": LlamaConfig(
            hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            vocab_size=512, max_position_embeddings=512, tie_word_embeddings=True, eos_token_id=None, bos_token_id=None,
        ),
    }  # fmt: skip


@dataclass(frozen=True)
class ModelSize:
    """What a step has to read and to compute at least.

    Attributes:
        num_weights: values in all matrices that are multiplied, the output head's among them.
        num_head_weights: those of the output head, which multiplies only a prompt's last token.
        kv_values_per_token: values that the cache keeps of a token.
    """

    num_weights: int
    num_head_weights: int
    kv_values_per_token: int
    bytes_per_value: int

    def decode_bytes(self, batch_size: int, context: float) -> float:
        """What a decode step reads: all matrices once, and the keys and values of each sequence. Activations are left out."""
        return (self.num_weights + batch_size * context * self.kv_values_per_token) * self.bytes_per_value

    def prefill_flops(self, num_tokens: int) -> float:
        """What the products of a prompt take, a multiplication and an addition being two. Attention is left out."""
        return 2.0 * ((self.num_weights - self.num_head_weights) * num_tokens + self.num_head_weights)


def make_model(config: PretrainedConfig, folder: Path, device: torch.device, dtype: torch.dtype) -> ModelSize:
    """A checkpoint with random weights, which are drawn on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder)
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() > 1)
    if not config.tie_word_embeddings:
        matrices -= model.get_input_embeddings().weight.numel()  # only some rows are read
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    head = model.get_output_embeddings().weight.numel()
    return ModelSize(matrices, head, 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim, dtype.itemsize)


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


class Bench:
    """An engine on this thread."""

    def __init__(self, loaded: LoadedEngine, *, async_scheduling: bool) -> None:
        self._scheduler, self._vocab_size = loaded.scheduler, loaded.runner.vocab_size
        self._core = EngineCore(loaded.scheduler, loaded.executor, lambda *_: None, async_scheduling=async_scheduling)
        self._ids = itertools.count()

    def decode_s(self, batch_size: int, prompt_len: int, num_steps: int, *, top_p: float | None = None) -> float:
        """The mean time of a decoding step. With top_p, tokens are drawn."""
        self._start_decoding(batch_size, prompt_len, top_p)
        started = time.perf_counter()
        for _ in range(num_steps):
            self._core.step()
        elapsed = time.perf_counter() - started
        self._end()
        return elapsed / num_steps

    def prefill_s(self, num_tokens: int) -> float:
        """The time from a prompt's arrival to its first token."""
        started = time.perf_counter()
        self._add(num_tokens, SamplingParams(max_tokens=1, temperature=0.0))
        finish(self._core, self._scheduler)
        return time.perf_counter() - started

    def mixed_s(self, batch_size: int, prompt_len: int, long_prompt_len: int) -> list[float]:
        """The times of steps while sequences decode and several long prompts come, until these are computed."""
        self._start_decoding(batch_size, prompt_len, None)
        long = [self._add(long_prompt_len, SamplingParams(max_tokens=4, temperature=0.0)) for _ in range(_NUM_LONG_PROMPTS)]
        times = []
        while not all(request.num_output_tokens for request in long):
            started = time.perf_counter()
            self._core.step()
            times.append(time.perf_counter() - started)
        self._end()
        return times

    def _start_decoding(self, batch_size: int, prompt_len: int, top_p: float | None) -> None:
        sampling = SamplingParams(max_tokens=1000, temperature=0.0 if top_p is None else 1.0, top_p=top_p or 1.0)
        requests = [self._add(prompt_len, sampling) for _ in range(batch_size)]
        while not all(request.num_output_tokens for request in requests):
            self._core.step()
        for _ in range(_NUM_WARM_UP):
            self._core.step()

    def _add(self, num_tokens: int, sampling: SamplingParams) -> Request:
        number = next(self._ids)
        prompt = [(7919 * (number + 1) * (j + 1)) % self._vocab_size for j in range(num_tokens)]
        request = Request(f"bench-{number}", prompt, sampling)
        self._scheduler.add(request)
        return request

    def _end(self) -> None:
        self._scheduler.abort(self._scheduler.live_request_ids)
        finish(self._core, self._scheduler)


def measure(path: Path, size: ModelSize, ceilings: dict[str, float], args: argparse.Namespace) -> dict[str, Any]:
    """One model; its figures beside the ceilings."""
    settings = EngineSettings(
        model=str(path),
        device=args.device,
        dtype="float32" if args.device == "cpu" else "bfloat16",
        max_model_len=max(args.prompt_len + args.num_steps + 64, args.prefill_len + 1, args.long_prompt_len + 8),
        max_num_seqs=max(*args.batch_sizes, args.mixed + _NUM_LONG_PROMPTS),
        max_num_batched_tokens=max(args.max_num_batched_tokens, *args.batch_sizes),
        kv_cache_memory=args.kv_cache_gb << 30,
        cuda_graphs=args.cuda_graphs,
        enable_prefix_caching=False,
        prompt_lookup=False,
    )
    bench = Bench(load_engine(settings), async_scheduling=args.async_scheduling)
    decodes = []
    for batch_size in args.batch_sizes:
        times = [bench.decode_s(batch_size, args.prompt_len, args.num_steps) for _ in range(args.repeats)]
        context = args.prompt_len + _NUM_WARM_UP + args.num_steps / 2
        bytes_per_s = size.decode_bytes(batch_size, context) / statistics.median(times)
        share = bytes_per_s / ceilings["bytes_per_s"]
        decodes.append({"batch_size": batch_size, "steps_s": times, "context": context, "share_of_bandwidth": share})
    sampled = [bench.decode_s(args.mixed, args.prompt_len, args.num_steps, top_p=0.9) for _ in range(args.repeats)]
    prefill = [bench.prefill_s(args.prefill_len) for _ in range(args.repeats + 1)][1:]
    flops = size.prefill_flops(args.prefill_len)
    rate = flops / statistics.median(prefill)
    return {
        "num_weights": size.num_weights,
        "decode": decodes,
        "sampled": {"batch_size": args.mixed, "top_p": 0.9, "steps_s": sampled},
        "prefill": {
            "num_tokens": args.prefill_len,
            "times_s": prefill,
            "flops": flops,
            "share_of_matrix_rate": rate / ceilings["flops_per_s"],
        },
        "mixed": {
            "batch_size": args.mixed,
            "prompts": [args.long_prompt_len] * _NUM_LONG_PROMPTS,
            "steps_s": bench.mixed_s(args.mixed, args.prompt_len, args.long_prompt_len),
        },
    }


def run(args: argparse.Namespace, save: Callable[[dict[str, Any]], None]) -> None:
    """Measure everything. save: keeps the results so far, after each model."""
    device, dtype = torch.device(args.device), torch.float32 if args.device == "cpu" else torch.bfloat16
    results = describe("gpu") | {"load": {"prompt": args.prompt_len, "steps": args.num_steps}, "shapes": {}}
    results["machine"]["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    results["ceilings"] = measure_ceilings(device, tiny=device.type == "cpu")
    for name in args.shapes:
        with tempfile.TemporaryDirectory(dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None) as folder:
            size = make_model(shapes()[name], Path(folder), device, dtype)
            if device.type == "cuda":
                torch.cuda.empty_cache()
            results["shapes"][name] = measure(Path(folder), size, results["ceilings"], args)
        print(describe_figures(name, results["shapes"][name]), flush=True)
        save(results)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def describe_figures(name: str, figures: dict[str, Any]) -> str:
    """What is printed of one model."""
    lines = []
    for one in figures["decode"]:
        step_s = statistics.median(one["steps_s"])
        rate, share = one["batch_size"] / step_s, one["share_of_bandwidth"]
        lines.append(
            f"decode of {one['batch_size']}: {1e3 * step_s:.2f} ms a step, {rate:.0f} tokens/s, {share:.0%} of the bandwidth"
        )
    sampled, prefill, mixed = (figures[part] for part in ("sampled", "prefill", "mixed"))
    lines.append(
        f"decode of {sampled['batch_size']}, drawn with top_p: {1e3 * statistics.median(sampled['steps_s']):.2f} ms a step"
    )
    rate = prefill["num_tokens"] / statistics.median(prefill["times_s"])
    lines.append(f"prefill: {rate:.0f} tokens/s, {prefill['share_of_matrix_rate']:.0%} of the matrix rate")
    longest = 1e3 * max(mixed["steps_s"])
    lines.append(f"decode of {mixed['batch_size']} beside prompts of {mixed['prompts'][0]} tokens: longest step {longest:.1f} ms")
    return "\n".join(f"{name}: {line}" for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", nargs="+", default=["llama-1b", "llama-8b", "qwen2.5-7b"], choices=[*shapes()], metavar="NAME")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64, 256], metavar="N")
    parser.add_argument("--prompt-len", type=int, default=512, help="tokens of the prompts of sequences that decode")
    parser.add_argument("--num-steps", type=int, default=100, help="decoding steps that are measured")
    parser.add_argument("--prefill-len", type=int, default=8000, help="tokens of the prompt that is measured")
    parser.add_argument("--mixed", type=int, default=64, metavar="N", help="sequences that decode beside long prompts")
    parser.add_argument("--long-prompt-len", type=int, default=4000)
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kv-cache-gb", type=int, default=40)
    parser.add_argument("--cuda-graphs", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--async-scheduling", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--output", type=Path, help="file for the results")
    args = parser.parse_args(argv)
    if args.device != "cpu" and not torch.cuda.is_available():
        print("this needs a CUDA device, and torch sees none; --device cpu --shapes tiny tries the code", file=sys.stderr)
        return 1
    if args.device == "cpu" and args.shapes != ["tiny"]:
        parser.error("on a CPU only --shapes tiny makes sense")

    def save(results: dict[str, Any]) -> None:
        output = args.output or (None if args.shapes == ["tiny"] else RESULTS / f"{results['date']}-gpu.json")
        if output is not None:
            write_results(output, results)

    run(args, save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
