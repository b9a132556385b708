"""What constraints cost: decoding steps of free, constrained and mixed rows, by turns.

    python -m benchmarks.constraints.steps
    python -m benchmarks.constraints.steps --sequences 8 32 --rounds 5 --async-scheduling -- --num-threads 1

What follows `--` are flags of `triptych engine`. The engine's step loop runs in this process. Each round measures --steps decoding
steps of each kind: all rows free, all with a JSON schema, and every other row with one. All rows sample at temperature 1. The
kinds take turns, and their steps are compared within a round; printed are medians of the rounds. Of one step with a schema in all
rows it should be at least 0.9 of the speed without, and of free rows beside constrained ones at least 0.98.

Results go to benchmarks/results/<date>-<name>.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics

import numpy as np
from pydantic_settings import CliApp
from triptych_common.constraints.spec import ConstraintSpec
from triptych_common.model.store import TEXT_MODEL
from triptych_engine.scheduling.request import Constraint

from benchmarks.engine.local import EngineCore, EngineSettings, LoadedEngine, Request, SamplingParams, load_engine, median_step_ms
from benchmarks.harness.sitting import RESULTS, check_positive, describe, new_parser, write_results
from benchmarks.harness.targets import describe_load

#: A list that no output completes, so that the rows stay constrained.
_ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "kind": {"enum": ["book", "film", "song"]},
        "year": {"type": "integer", "minimum": 1000, "maximum": 2030},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z ]{3,12}$"}, "maxItems": 3},
        "score": {"type": ["number", "null"], "minimum": 0, "maximum": 100},
    },
    "required": ["name", "kind", "year", "tags", "score"],
    "additionalProperties": False,
}
SCHEMA = json.dumps({"type": "array", "items": _ITEM, "minItems": 10_000})
KINDS = ("free", "constrained", "mixed")


class Bench:
    """An engine on this thread."""

    def __init__(self, loaded: LoadedEngine, *, async_scheduling: bool) -> None:
        self._scheduler, self._vocab_size = loaded.scheduler, loaded.runner.vocab_size
        self._constraint = Constraint(ConstraintSpec("json_schema", SCHEMA))
        self._compiled = loaded.executor.compile_constraint(self._constraint.spec)
        self._compiled.result()
        self._core = EngineCore(loaded.scheduler, loaded.executor, lambda *_: None, async_scheduling=async_scheduling)
        self._ids = itertools.count()

    def step_ms(self, kind: str, num_seqs: int, context: int, num_steps: int) -> float:
        """The median time of a decoding step."""
        requests = [self._request(kind, index, context, num_steps) for index in range(num_seqs)]
        return median_step_ms(self._core, self._scheduler, requests, num_steps)

    def _request(self, kind: str, index: int, context: int, num_steps: int) -> Request:
        is_constrained = kind == "constrained" or (kind == "mixed" and index % 2 == 1)
        prompt = np.random.default_rng(index).integers(self._vocab_size, size=context).tolist()
        sampling = SamplingParams(
            max_tokens=1000 + num_steps, seed=index, constraint=self._constraint if is_constrained else None
        )  # fmt: skip
        return Request(f"bench-{next(self._ids)}", prompt, sampling)


def run(args: argparse.Namespace) -> dict:
    """Load the engine and measure; returns the results."""
    flags = ["--no-prompt-lookup", "--model", args.model, "--kv-cache-memory", args.kv_cache_memory, *args.serve_args]
    bench = Bench(load_engine(CliApp.run(EngineSettings, cli_args=flags)), async_scheduling=args.async_scheduling)
    described, runs = describe("constraints.steps"), []
    for num_seqs in args.sequences:
        rounds = []
        for number in range(args.rounds):
            order = KINDS if number % 2 == 0 else KINDS[::-1]
            times = {kind: bench.step_ms(kind, num_seqs, args.context, args.steps) for kind in order}
            rounds.append(times)
        ratios = {kind: statistics.median(times["free"] / times[kind] for times in rounds) for kind in KINDS[1:]}
        runs.append({"num_seqs": num_seqs, "rounds_ms": rounds, "speed_of_free": ratios})
        steps = ", ".join(f"{kind} {statistics.median(times[kind] for times in rounds):.1f} ms" for kind in KINDS)
        speeds = ", ".join(f"{kind} {ratio:.3f}" for kind, ratio in ratios.items())
        print(f"{num_seqs} sequences: {steps}; speed against free rows: {speeds}", flush=True)
    keys = ("sequences", "context", "steps", "rounds", "async_scheduling", "kv_cache_memory")
    return {**described, "load": describe_load(args, *keys), "runs": runs}


def parse_args() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default=TEXT_MODEL)
    parser.add_argument("--sequences", type=int, nargs="+", default=[32], metavar="N", help="in a step")
    parser.add_argument("--context", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--steps", type=int, default=20, help="that are timed of each kind in each round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--async-scheduling", action="store_true")
    parser.add_argument("--kv-cache-memory", default="1G", help="of the engine")
    parser.add_argument("--name", default="constraints", help="of the results file")
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
