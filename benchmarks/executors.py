"""What it costs that a worker process computes the steps: the same steps in both forms, by turns.

    python -m benchmarks.executors
    python -m benchmarks.executors --sequences 64 --rounds 9 --step-ms 10

A step computes nothing but occupies its core for --step-ms, so that all else of it can be seen: scheduler, messages between the
processes, waiting threads that have to wake. The forms are: in the engine's process (uni), in a worker (mp) that the loop waits
for, and in a worker with asynchronous scheduling, which is the default of mp. The forms take turns. Printed are medians of the
rounds: how much longer than --step-ms the median step takes.

Results go to benchmarks/results/<date>-<name>.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from pathlib import Path

from triptych_common.model.store import TEXT_MODEL, WEIGHT_PATTERNS, read_json, resolve_model
from triptych_engine.executor.multiproc import MultiprocExecutor
from triptych_engine.executor.protocol import Executor
from triptych_engine.executor.simulated import SimulatedEngine, SimulatedExecutor
from triptych_engine.executor.worker import WorkerConfig
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.output import StepResult
from triptych_engine.scheduling.request import Request, SamplingParams
from triptych_engine.scheduling.scheduler import Scheduler
from triptych_engine.settings import EngineSettings

from benchmarks.engine.local import EngineCore, median_step_ms
from benchmarks.harness.sitting import RESULTS, check_positive, describe, new_parser, write_results

#: Form -> whether a worker computes, and whether the next step is scheduled meanwhile.
FORMS = {"uni": (False, False), "mp": (True, False), "mp, asynchronous": (True, True)}
#: Tokens of a prompt, and of an answer beside those of the measured steps.
_PROMPT, _NUM_TOKENS = 50, 100


class BusyExecutor(SimulatedExecutor):
    """Computes nothing, and keeps its core busy with it."""

    def result(self, step_id: int) -> StepResult:
        end_s = self._launched[step_id][1]
        while time.perf_counter() < end_s:
            pass
        return super().result(step_id)


def busy(model_path: Path, vocab_size: int, step_s: float, num_blocks: int, *of_worker: object) -> Executor:
    """An executor whose steps all take the same time."""
    engine = SimulatedEngine(fixed_s=step_s, decode_s=0.0, prompt_token_s=1e-9, num_blocks=num_blocks)
    return BusyExecutor(engine, model_path, vocab_size, EngineSettings(max_num_batched_tokens=1 << 16))


class Bench:
    """All forms, each with its own executor.

    Args:
        make: makes an executor here, or in a worker.
    """

    def __init__(self, make: partial[Executor]) -> None:
        self._executors: dict[bool, Executor] = {False: make(), True: MultiprocExecutor(WorkerConfig(make))}
        self._loaded = {in_worker: executor.load() for in_worker, executor in self._executors.items()}

    def measure(self, form: str, num_seqs: int, num_steps: int) -> float:
        """The median step of so many decoding sequences, in ms."""
        in_worker, is_asynchronous = FORMS[form]
        executor, loaded = self._executors[in_worker], self._loaded[in_worker]
        scheduler = Scheduler(
            KVCacheManager(loaded.num_blocks, loaded.block_size),
            max_num_seqs=num_seqs,
            max_num_batched_tokens=loaded.max_num_batched_tokens,
            max_waiting=num_seqs,
            max_model_len=1 << 20,
        )
        core = EngineCore(scheduler, executor, lambda *_: None, async_scheduling=is_asynchronous)
        sampling = SamplingParams(max_tokens=_NUM_TOKENS + num_steps, temperature=0.0)
        prompt = list(range(_PROMPT))
        requests = [Request(f"chatcmpl-0123456789abcdef-{form}-{index}", prompt, sampling) for index in range(num_seqs)]
        return median_step_ms(core, scheduler, requests, num_steps)

    def close(self) -> None:
        for executor in self._executors.values():
            executor.close()


def run(args: argparse.Namespace) -> dict:
    """Measure all forms; returns the results."""
    path = resolve_model(TEXT_MODEL, WEIGHT_PATTERNS)
    vocab_size = read_json(path / "config.json")["vocab_size"]
    num_blocks = max(args.sequences) * (_PROMPT + _NUM_TOKENS + args.steps)  # more than enough
    described, runs = describe("executors"), []
    bench = Bench(partial(busy, path, vocab_size, args.step_ms / 1e3, num_blocks))
    try:
        for num_seqs in args.sequences:
            rounds = [{form: bench.measure(form, num_seqs, args.steps) for form in FORMS} for _ in range(args.rounds)]
            runs.append({"num_seqs": num_seqs, "rounds_ms": rounds})
            print(f"{num_seqs} sequences: " + ", ".join(
                f"{form} {statistics.median(one[form] for one in rounds) - args.step_ms:.2f} ms" for form in FORMS
            ))  # fmt: skip
    finally:
        bench.close()
    return {**described, "load": {key: getattr(args, key) for key in ("sequences", "step_ms", "steps", "rounds")}, "runs": runs}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 64, 256], metavar="N", help="that decode at once")
    parser.add_argument("--step-ms", type=float, default=10.0, help="what a step computes")
    parser.add_argument("--steps", type=int, default=150, help="of each form in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="executors")
    args = parser.parse_args()
    check_positive(parser, *args.sequences, args.step_ms, args.steps, args.rounds)
    results = run(args)
    write_results(RESULTS / f"{results['date']}-{args.name}.json", results)


if __name__ == "__main__":
    # The worker finds the executor in the module of this name, not in `__main__`.
    from benchmarks import executors

    executors.main()
