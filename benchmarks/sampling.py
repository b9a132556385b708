"""What the options of sampling cost: decoding steps of greedy rows and of rows with options, by turns.

    python -m benchmarks.sampling
    python -m benchmarks.sampling --sequences 64 --rounds 5 --kinds "top-p" "all, flat" -- --num-threads 1

What follows `--` are flags of `triptych engine`. The engine's step loop runs in this process. Each round measures --steps decoding
steps of each kind. The kinds take turns, and are compared within a round. Prompts are random tokens, after which the model's
distributions are flat, so that cuts lie far from the likeliest token; a text has sharper ones.

Printed are, as medians of the rounds: the time of a step, the CPU time of the process in it, the time from the logits to the
tokens (runner.sample and the result), and how much longer than a greedy step the step would be by these alone. The last is what
should be at most 10 percent: it hardly varies with what else the machine does, as the whole step does.

Results go to benchmarks/results/<date>-<name>.json.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from typing import Any

import numpy as np
from pydantic_settings import CliApp
from triptych_common.model.store import TEXT_MODEL

from benchmarks.engine.local import EngineCore, EngineSettings, LoadedEngine, Request, SamplingParams, load_engine
from benchmarks.harness.sitting import RESULTS, check_positive, describe, new_parser, write_results
from benchmarks.harness.targets import describe_load

GREEDY = "greedy"
_EDITS: dict[str, Any] = {
    "repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1, "logit_bias": dict.fromkeys(range(10), 1.0),
    "bad_token_ids": (1, 3, 4), "stop_token_ids": frozenset({2}), "min_tokens": 900,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    GREEDY: {"temperature": 0.0},
    "temperature": {},
    "top-p": {"top_p": 0.95},
    "top-k and top-p": {"top_k": 50, "top_p": 0.95},
    "min-p": {"min_p": 0.05},
    "logprobs": {"temperature": 0.0, "logprobs": 20},
    "penalties, bias, bans": {"temperature": 0.0, **_EDITS},
    "all": {**_EDITS, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "logprobs": 20},
    "all, flat": {**_EDITS, "top_p": 0.95, "logprobs": 20},
}
_NUM_WARM_UP = 4


class Bench:
    """An engine on this thread."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self._scheduler, self._executor, self._vocab_size = loaded.scheduler, loaded.executor, loaded.runner.vocab_size
        self._core = EngineCore(loaded.scheduler, loaded.executor, lambda *_: None)
        self._ids = itertools.count()
        self._sampling_s = 0.0
        for name in ("sample", "result"):
            self._clock(name)

    def _clock(self, name: str) -> None:
        method = getattr(self._executor, name)

        def clocked(step_id: int) -> Any:
            started_s = time.perf_counter()
            try:
                return method(step_id)
            finally:
                self._sampling_s += time.perf_counter() - started_s

        setattr(self._executor, name, clocked)

    def measure(self, kind: str, num_seqs: int, context: int, num_steps: int) -> dict[str, float]:
        """Medians of decoding steps, in ms."""
        requests = [self._request(kind, index, context) for index in range(num_seqs)]
        for request in requests:
            self._scheduler.add(request)
        while any(not request.num_output_tokens for request in requests):
            self._core.step()
        for _ in range(_NUM_WARM_UP):
            self._core.step()
        steps = []
        for _ in range(num_steps):
            self._sampling_s, started_s, cpu_s = 0.0, time.perf_counter(), time.process_time()
            self._core.step()
            steps.append((time.perf_counter() - started_s, time.process_time() - cpu_s, self._sampling_s))
        self._scheduler.abort(self._scheduler.live_request_ids)
        self._core.step()
        return {
            name: 1e3 * statistics.median(each)
            for name, each in zip(("step_ms", "cpu_ms", "sampling_ms"), zip(*steps, strict=True), strict=True)
        }

    def _request(self, kind: str, index: int, context: int) -> Request:
        prompt = np.random.default_rng(index).integers(self._vocab_size, size=context).tolist()
        sampling = SamplingParams(max_tokens=1000, seed=index, **KINDS[kind])
        return Request(f"bench-{next(self._ids)}", prompt, sampling)


def compare(rounds: list[dict[str, dict[str, float]]], kind: str) -> dict[str, float]:
    """Medians of one kind, and what it costs against greedy steps of the same round."""
    medians = {name: statistics.median(one[kind][name] for one in rounds) for name in ("step_ms", "cpu_ms", "sampling_ms")}
    greedy_ms = statistics.median(one[GREEDY]["step_ms"] for one in rounds)
    costs = (one[kind]["sampling_ms"] - one[GREEDY]["sampling_ms"] for one in rounds)
    steps = (one[kind]["step_ms"] / one[GREEDY]["step_ms"] - 1 for one in rounds)
    return {
        **medians,
        "sampling_percent": 100 * statistics.median(costs) / greedy_ms,
        "step_percent": 100 * statistics.median(steps),
    }


def run(args: argparse.Namespace) -> dict:
    """Load the engine and measure; returns the results."""
    flags = ["--no-prompt-lookup", "--model", args.model, "--kv-cache-memory", args.kv_cache_memory, *args.serve_args]
    bench = Bench(load_engine(CliApp.run(EngineSettings, cli_args=flags)))
    described, runs = describe("sampling"), []
    kinds = [GREEDY, *(kind for kind in args.kinds if kind != GREEDY)]
    for num_seqs in args.sequences:
        rounds = []
        for number in range(args.rounds):
            order = kinds if number % 2 == 0 else kinds[::-1]
            rounds.append({kind: bench.measure(kind, num_seqs, args.context, args.steps) for kind in order})
        compared = {kind: compare(rounds, kind) for kind in kinds}
        runs.append({"num_seqs": num_seqs, "rounds": rounds, "kinds": compared})
        for kind, one in compared.items():
            print(
                f"{num_seqs} sequences, {kind}: step {one['step_ms']:.1f} ms, CPU {one['cpu_ms']:.1f} ms,"
                f" sampling {one['sampling_ms']:.2f} ms: {one['sampling_percent']:+.1f} % of a greedy step"
                f" (whole steps: {one['step_percent']:+.1f} %)",
                flush=True,
            )
    keys = ("sequences", "context", "steps", "rounds", "kinds", "kv_cache_memory")
    return {**described, "load": describe_load(args, *keys), "runs": runs}


def parse_args() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default=TEXT_MODEL)
    parser.add_argument("--sequences", type=int, nargs="+", default=[64], metavar="N", help="in a step")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help="to compare with greedy rows"
    )
    parser.add_argument("--context", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--steps", type=int, default=10, help="that are timed of each kind in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kv-cache-memory", default="1G", help="of the engine")
    parser.add_argument("--name", default="sampling", help="of the results file")
    parser.add_argument("serve_args", nargs="*", help="after --: flags for `triptych engine`")
    args = parser.parse_args()
    check_positive(parser, *args.sequences, args.context, args.steps, args.rounds)
    return args


def main() -> None:
    args = parse_args()
    results = run(args)
    write_results(RESULTS / f"{results['date']}-{args.name}.json", results)


if __name__ == "__main__":
    main()
