"""Hybrid models, and a mixture of experts, with random weights: the engine beside transformers' own `generate`, and a prefix that
is found.

    python -m benchmarks.hybrids
    python -m benchmarks.hybrids --shapes lfm2 --streams 1 8 --max-tokens 64

transformers gets all prompts of a round as one batch, of equal lengths, so that none is padded; its attention is "sdpa". Both
compute greedily in bfloat16, with the same threads, in one process, one after the other in each round. Each shape has a process of
its own, with an engine's environment. The engine has the settings of `LLM`, as nobody reads a text before it is complete.

Then a prompt of --prefix tokens is computed, and again with its prefix found in the cache: the tokens must be the same.

Results go to benchmarks/results/<date>-<name>.json.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import transformers
from pydantic_settings import CliApp
from transformers import AutoModelForCausalLM, PretrainedConfig
from triptych.local.server import flags as setting_flags
from triptych.offline.arguments import THROUGHPUT
from triptych_common.model.store import TEXT_MODEL, resolve_model

from benchmarks.engine.local import EngineCore, EngineSettings, LoadedEngine, Request, SamplingParams, finish, load_engine
from benchmarks.harness.machine import BusyMeter
from benchmarks.harness.sitting import check_positive, describe, new_parser
from benchmarks.report.hold import hold

_COMMON: dict[str, Any] = {"vocab_size": 49152, "hidden_size": 1024, "max_position_embeddings": 8192, "tie_word_embeddings": True}


def _shapes() -> dict[str, PretrainedConfig]:
    """Of the size and the kind of these families' small models."""
    return {
        "qwen3.5": transformers.Qwen3_5TextConfig(
            **_COMMON,
            num_hidden_layers=24,
            intermediate_size=3584,
            num_attention_heads=8,
            num_key_value_heads=2,
            head_dim=256,
            linear_num_key_heads=16,
            linear_num_value_heads=16,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
        ),
        "granite4-hybrid": transformers.GraniteMoeHybridConfig(
            **_COMMON,
            num_hidden_layers=24,
            layer_types=(["linear_attention"] * 5 + ["full_attention"]) * 4,
            num_attention_heads=16,
            num_key_value_heads=4,
            num_local_experts=0,
            shared_intermediate_size=2048,
            mamba_n_heads=32,
            mamba_d_head=64,
            mamba_d_state=128,
            mamba_n_groups=1,
            mamba_expand=2,
        ),
        "lfm2": transformers.Lfm2Config(
            **_COMMON,
            num_hidden_layers=16,
            layer_types=(["conv", "conv", "full_attention"] * 6)[:16],
            intermediate_size=4608,
            block_auto_adjust_ff_dim=False,
            num_attention_heads=16,
            num_key_value_heads=8,
        ),
        "qwen3-moe": transformers.Qwen3MoeConfig(
            **_COMMON,
            num_hidden_layers=16,
            intermediate_size=3072,
            num_attention_heads=16,
            num_key_value_heads=4,
            head_dim=64,
            num_experts=64,
            num_experts_per_tok=8,
            moe_intermediate_size=384,
        ),
    }


def save_model(folder: Path, config: PretrainedConfig) -> None:
    """A checkpoint with random weights in bfloat16, and the tokenizer of the default model."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((resolve_model(TEXT_MODEL) / name).read_bytes())


class Engine:
    """The engine's step loop on this thread."""

    def __init__(self, path: Path, kv_cache_memory: str, serve_args: list[str]) -> None:
        flags = ["--model", str(path), "--kv-cache-memory", kv_cache_memory, "--max-model-len", "8192"]
        flags += [*setting_flags(THROUGHPUT), *serve_args]
        self.loaded: LoadedEngine = load_engine(CliApp.run(EngineSettings, cli_args=flags))
        self._core = EngineCore(self.loaded.scheduler, self.loaded.executor, lambda step, outputs, load: None)
        self._ids = itertools.count()

    def generate(self, prompts: list[list[int]], max_tokens: int) -> tuple[list[Request], float, float]:
        """The requests with their output, seconds in all, and seconds until all have a token."""
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        requests = [Request(f"bench-{next(self._ids)}", prompt, sampling) for prompt in prompts]
        started_s = time.perf_counter()
        for request in requests:
            self.loaded.scheduler.add(request)
        while any(not request.num_output_tokens for request in requests):
            self._core.step()
        first_s = time.perf_counter() - started_s
        finish(self._core, self.loaded.scheduler)
        return requests, time.perf_counter() - started_s, first_s


def _prompts(seed: int, count: int, num_tokens: int) -> list[list[int]]:
    return np.random.default_rng(seed).integers(100, 40_000, size=(count, num_tokens)).tolist()


@torch.inference_mode()
def _transformers(model: Any, prompts: list[list[int]], max_tokens: int) -> float:
    """Seconds of transformers' own loop."""
    started_s = time.perf_counter()
    ids = torch.tensor(prompts)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, eos_token_id=None)
    assert out.shape[1] == ids.shape[1] + max_tokens
    return time.perf_counter() - started_s


def measure(engine: Engine, model: Any, args: argparse.Namespace) -> list[dict]:
    """Rounds of both, by turns, for each number of streams."""
    runs = []
    for num_streams in args.streams:
        for repeat in range(-1, args.repeats):  # the first is not counted
            prompts = _prompts(1000 * num_streams + repeat + 1, num_streams, args.prompt_tokens)
            _, own_s, _ = engine.generate(prompts, args.max_tokens)
            theirs_s = _transformers(model, prompts, args.max_tokens)
            if repeat < 0:
                continue
            num_tokens = num_streams * args.max_tokens
            figures = {"tokens_per_s": num_tokens / own_s, "transformers_tokens_per_s": num_tokens / theirs_s}
            runs.append({"num_streams": num_streams, "repeat": repeat, **figures, "ratio": theirs_s / own_s})
        ratio = statistics.median(run["ratio"] for run in runs if run["num_streams"] == num_streams)
        print(f"  {num_streams} streams: {runs[-1]['tokens_per_s']:.1f} tokens/s, {ratio:.2f} times transformers", flush=True)
    return runs


def find_prefix(engine: Engine, num_tokens: int) -> dict:
    """A prompt without and with its prefix in the cache."""
    (prompt,) = _prompts(7, 1, num_tokens)
    engine.generate([prompt[:600]], 4)  # whatever the first long prompt needs
    engine.loaded.scheduler.reset_caches()
    (first,), _, first_s = engine.generate([prompt], 32)
    (again,), _, again_s = engine.generate([prompt], 32)
    outputs = [request.token_ids[num_tokens:] for request in (first, again)]
    found = {"prompt_tokens": num_tokens, "cached_tokens": again.num_cached_tokens, "same_tokens": outputs[0] == outputs[1]}
    print(f"  a prompt of {num_tokens} tokens: {first_s:.2f} s; again {again_s:.3f} s, {found}", flush=True)
    return {**found, "first_s": first_s, "again_s": again_s}


def measure_shape(name: str, args: argparse.Namespace) -> dict:
    """All figures of one shape."""
    config, meter = _shapes()[name], BusyMeter([psutil.Process()])
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), config)
        engine = Engine(Path(folder), args.kv_cache_memory, args.serve_args)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
        recurrent = engine.loaded.runner._model.recurrent
        size = {"num_parameters": model.num_parameters(), "state_bytes": 0 if recurrent is None else recurrent.state_bytes}
        print(f"{name}: {size['num_parameters'] / 1e6:.0f} M parameters, {size['state_bytes'] / 1e6:.1f} MB of state", flush=True)
        result = {"shape": name, **size, "config": config.to_diff_dict(), "runs": measure(engine, model, args)}
        return {**result, "prefix": find_prefix(engine, args.prefix), "others_percent": meter.percent()["others"]}


def run(args: argparse.Namespace) -> dict:
    """Measure each shape; returns the results."""
    described, shapes = describe("hybrids"), []
    for name in args.shapes:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            shapes.append(process.submit(measure_shape, name, args).result())
    described["others_percent"] = max(one["others_percent"] for one in shapes)
    keys = ("streams", "prompt_tokens", "max_tokens", "prefix", "repeats", "kv_cache_memory", "serve_args")
    return {**described, "load": {key: getattr(args, key) for key in keys}, "shapes": shapes}


def parse_args() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--shapes", nargs="+", default=[*_shapes()], choices=[*_shapes()], metavar="NAME")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8], metavar="N")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--prefix", type=int, default=2000, metavar="N", help="tokens of the prompt that comes again")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--kv-cache-memory", default="2G", help="of the engine")
    parser.add_argument("--name", default="hybrids", help="of the results file")
    parser.add_argument("serve_args", nargs="*", help="after --: flags for `triptych engine`")
    args = parser.parse_args()
    check_positive(parser, *args.streams, args.prompt_tokens, args.max_tokens, args.prefix, args.repeats)
    return args


def main() -> None:
    args = parse_args()
    hold(lambda: run(args), lambda results: int(not all(one["prefix"]["same_tokens"] for one in results["shapes"])), args.name)


if __name__ == "__main__":
    main()
