"""What adapters cost: steps of the base model, with one adapter in all rows, and with four adapters in turn.

    python -m benchmarks.loras
    python -m benchmarks.loras --sequences 4 32 --rank 64 -- --num-threads 1

What follows `--` are flags of `triptych engine`. The engine's step loop runs in this process. Random adapters of all linear layers
are written to a temporary directory. Each round measures --steps decoding steps of each kind, and one prompt of --prompt tokens
for each, which has one adapter, or none. The kinds take turns, and are compared within a round; printed are medians of the rounds.

Results go to benchmarks/results/<date>-<name>.json.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from pydantic_settings import CliApp
from transformers import AutoModelForCausalLM
from triptych_common.model.blocks import adapter_salt
from triptych_common.model.store import TEXT_MODEL, resolve_model

from benchmarks.engine.local import (
    EngineCore,
    EngineSettings,
    LoadedEngine,
    Request,
    SamplingParams,
    finish,
    load_engine,
    median_step_ms,
)
from benchmarks.harness.sitting import RESULTS, check_positive, describe, new_parser, write_results
from benchmarks.harness.targets import describe_load

NAMES = ("one", "two", "three", "four")
#: Kind -> the adapters of the rows, in turn.
KINDS: dict[str, tuple[str, ...]] = {"base": (), "one adapter": NAMES[:1], "four adapters": NAMES}


class Bench:
    """An engine on this thread."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self._scheduler, self._vocab_size = loaded.scheduler, loaded.runner.vocab_size
        self._core = EngineCore(loaded.scheduler, loaded.executor, lambda *_: None)
        self._adapters = {name: loaded.executor.load_lora(name) for name in NAMES}
        self._ids = itertools.count()

    def decode_ms(self, names: tuple[str, ...], num_seqs: int, num_steps: int) -> float:
        """The median time of a decoding step."""
        requests = [self._request(names, index, 64, 1000) for index in range(num_seqs)]
        return median_step_ms(self._core, self._scheduler, requests, num_steps)

    def prompt_ms(self, names: tuple[str, ...], num_tokens: int) -> float:
        """The time of a prompt."""
        self._scheduler.add(self._request(names, 0, num_tokens, 1))
        started_s = time.perf_counter()
        finish(self._core, self._scheduler)
        return 1e3 * (time.perf_counter() - started_s)

    def _request(self, names: tuple[str, ...], index: int, num_tokens: int, max_tokens: int) -> Request:
        number = next(self._ids)
        prompt = np.random.default_rng(number).integers(self._vocab_size, size=num_tokens).tolist()
        request = Request(f"bench-{number}", prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0))
        if names:
            request.lora = names[index % len(names)]
            request.prepared = self._adapters[request.lora]
            request.lora_digest = self._adapters[request.lora].result().digest
            request.cache_salt = adapter_salt("", request.lora_digest)
        return request


def write_adapters(model: Path, folder: Path, rank: int) -> None:
    """Random adapters of all linear layers of a model."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules="all-linear", init_lora_weights=False)
    adapted = get_peft_model(base, config, adapter_name=NAMES[0], autocast_adapter_dtype=False)
    for name in NAMES[1:]:
        adapted.add_adapter(name, config, autocast_adapter_dtype=False)
    adapted.save_pretrained(str(folder))


def run(args: argparse.Namespace) -> dict:
    """Load the engine and measure; returns the results."""
    with tempfile.TemporaryDirectory() as folder:
        write_adapters(resolve_model(args.model), Path(folder), args.rank)
        flags = ["--no-prompt-lookup", "--model", args.model, "--kv-cache-memory", args.kv_cache_memory, "--lora-dir", folder]
        bench = Bench(load_engine(CliApp.run(EngineSettings, cli_args=[*flags, *args.serve_args])))
        described, runs = describe("loras"), []
        for what in (*args.sequences, "prompt"):
            rounds = []
            for number in range(args.rounds):
                kinds = list(KINDS.items())[:: -1 if number % 2 else 1]
                if what == "prompt":
                    times = {kind: bench.prompt_ms(names, args.prompt) for kind, names in kinds}
                else:
                    times = {kind: bench.decode_ms(names, what, args.steps) for kind, names in kinds}
                rounds.append(times)
            ratios = {kind: statistics.median(times[kind] / times["base"] for times in rounds) for kind in list(KINDS)[1:]}
            runs.append({"sequences": what, "rounds_ms": rounds, "of_base": ratios})
            shown = f"{args.prompt} tokens of a prompt" if what == "prompt" else f"{what} sequences"
            steps = ", ".join(f"{kind} {statistics.median(times[kind] for times in rounds):.2f} ms" for kind in KINDS)
            print(f"{shown}: {steps}; {', '.join(f'{kind} {ratio:.3f}' for kind, ratio in ratios.items())} of base", flush=True)
    load = describe_load(args, "sequences", "rank", "prompt", "steps", "rounds", "kv_cache_memory")
    return {**described, "load": load, "runs": runs}


def parse_args() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default=TEXT_MODEL)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 8, 32, 64], metavar="N", help="in a step")
    parser.add_argument("--rank", type=int, default=16, help="of the adapters")
    parser.add_argument("--prompt", type=int, default=480, help="tokens of a prompt")
    parser.add_argument("--steps", type=int, default=20, help="that are timed of each kind in each round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--kv-cache-memory", default="1G", help="of the engine")
    parser.add_argument("--name", default="loras", help="of the results file")
    parser.add_argument("serve_args", nargs="*", help="after --: flags for `triptych engine`")
    args = parser.parse_args()
    check_positive(parser, *args.sequences, args.rank, args.prompt, args.steps, args.rounds)
    return args


def main() -> None:
    args = parse_args()
    results = run(args)
    write_results(RESULTS / f"{results['date']}-{args.name}.json", results)


if __name__ == "__main__":
    main()
