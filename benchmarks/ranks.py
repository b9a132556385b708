"""What it brings, and costs, that several processes compute a model together: one with all cores beside ranks with some each.

    python -m benchmarks.ranks
    python -m benchmarks.ranks --model /path/of/a/model --ranks 2 --sequences 1 8 64 --prefill 512 --rounds 5

The forms are: one worker process, ranks that add up through shared memory, which is how ranks of one host do it, and ranks that add
up through sockets (Gloo). They take turns. Measured are decoding steps of --sequences after prompts of --context tokens, and steps
with a whole prompt of --prefill tokens; and the memory of each form's processes once the model is loaded, besides files and without
the KV cache. Printed are medians of the rounds.

Results go to benchmarks/results/<date>-<name>.json.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Sequence
from functools import partial
from unittest import mock

import numpy as np
from pydantic_settings import CliApp
from triptych_common.host.memory import private_memory
from triptych_common.model import store as model_store
from triptych_engine.assembly import make_scheduler
from triptych_engine.executor.multiproc import MultiprocExecutor
from triptych_engine.executor.worker import WorkerConfig, executor_of_worker
from triptych_engine.scheduling.request import Request, SamplingParams

from benchmarks.engine.local import EngineCore, EngineSettings, finish, median_step_ms
from benchmarks.harness.sitting import RESULTS, check_positive, describe, new_parser, write_results

#: Tokens of an answer beside those of the measured steps.
_NUM_TOKENS = 100


class Form:
    """Processes that have loaded the model.

    Args:
        size: number of them.
        shares_memory: whether they may exchange tensors through memory.
    """

    def __init__(self, settings: EngineSettings, size: int, *, shares_memory: bool) -> None:
        path = model_store.resolve_model(settings.model, model_store.WEIGHT_PATTERNS)
        model = model_store.model_info(path, model_store.served_name(settings.model), settings.max_model_len)
        make = partial(executor_of_worker, settings, model, path, None, 0, None)
        self._executor = MultiprocExecutor(WorkerConfig(make), num_workers=size)
        with mock.patch.object(os, "memfd_create", os.memfd_create if shares_memory else _none):
            loaded = self._executor.load()
        self._scheduler = make_scheduler(settings, loaded, model.max_model_len)
        self._core = EngineCore(self._scheduler, self._executor, lambda *_: None, async_scheduling=True)
        self._vocab_size, self._ids = loaded.vocab_size, itertools.count()
        self.megabytes = [private_memory(pid) / 1e6 for pid in self._executor.pids]

    def decode(self, num_seqs: int, context: int, num_steps: int) -> float:
        """The median step of so many sequences, in ms."""
        requests = [self._request(context, _NUM_TOKENS + num_steps) for _ in range(num_seqs)]
        return median_step_ms(self._core, self._scheduler, requests, num_steps)

    def prefill(self, num_tokens: int, num_prompts: int) -> float:
        """The median time of a prompt until its first token, in ms."""
        times = []
        for _ in range(num_prompts):
            request = self._request(num_tokens, 1)
            started_s = time.perf_counter()
            self._scheduler.add(request)
            while not request.num_output_tokens:
                self._core.step()
            times.append(1e3 * (time.perf_counter() - started_s))
            finish(self._core, self._scheduler)
        return statistics.median(times)

    def _request(self, num_tokens: int, max_tokens: int) -> Request:
        prompt = np.random.default_rng().integers(self._vocab_size, size=num_tokens).tolist()
        return Request(f"bench-{next(self._ids)}", prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0))

    def close(self) -> None:
        self._executor.close()


def _none(name: str) -> int:
    return -1


def run(args: argparse.Namespace) -> dict:
    """Measure all forms; returns the results."""
    flags = ["--model", args.model, "--kv-cache-memory", "512M", "--no-prefault-kv-cache", "--max-step-ms", "10000"]
    settings = CliApp.run(EngineSettings, cli_args=[*flags, "--max-num-batched-tokens", "8192", *args.serve_args])
    described, forms, runs = describe("ranks"), dict[str, Form](), []
    try:
        forms["one process"] = Form(settings, 1, shares_memory=False)
        forms["shared memory"] = Form(settings, args.ranks, shares_memory=True)
        forms["sockets"] = Form(settings, args.ranks, shares_memory=False)
        for num_seqs in args.sequences:
            rounds = [
                {name: form.decode(num_seqs, args.context, args.steps) for name, form in forms.items()} for _ in range(args.rounds)
            ]
            runs.append({"phase": "decode", "num_seqs": num_seqs, "rounds_ms": rounds})
            print_medians(f"{num_seqs} sequences", rounds)
        rounds = [{name: form.prefill(args.prefill, args.prompts) for name, form in forms.items()} for _ in range(args.rounds)]
        runs.append({"phase": "prefill", "num_tokens": args.prefill, "rounds_ms": rounds})
        print_medians(f"a prompt of {args.prefill} tokens", rounds)
        megabytes = {name: form.megabytes for name, form in forms.items()}
    finally:
        for form in forms.values():
            form.close()
    load = {key: getattr(args, key) for key in ("model", "ranks", "sequences", "context", "prefill", "steps", "prompts", "rounds")}
    return {**described, "load": load, "megabytes": megabytes, "runs": runs}


def print_medians(what: str, rounds: Sequence[dict[str, float]]) -> None:
    print(
        f"{what}: " + ", ".join(f"{form} {statistics.median(one[form] for one in rounds):.1f} ms" for form in rounds[0]), flush=True
    )


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default=model_store.TEXT_MODEL, help="name or directory")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 64], metavar="N", help="that decode at once")
    parser.add_argument("--context", type=int, default=64, help="tokens of their prompts")
    parser.add_argument("--prefill", type=int, default=512, help="tokens of prompts that are computed alone")
    parser.add_argument("--steps", type=int, default=40, help="of each form in each round")
    parser.add_argument("--prompts", type=int, default=4, help="of each form in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="ranks")
    parser.add_argument("serve_args", nargs="*", help="further flags of `triptych engine`, after --")
    args = parser.parse_args()
    check_positive(parser, args.ranks - 1, *args.sequences, args.context, args.prefill, args.steps, args.prompts, args.rounds)
    results = run(args)
    write_results(RESULTS / f"{results['date']}-{args.name}.json", results)


if __name__ == "__main__":
    main()
