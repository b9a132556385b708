"""Where the time of an engine step goes, and what a step costs as contexts grow.

    python -m benchmarks.steps
    python -m benchmarks.steps --sequences 1 8 --contexts 128 512 --steps 8 -- --num-threads 1

What follows `--` are flags of `triptych engine`. The engine's step loop runs in this process, with nobody on the other side:
schedule, runner, sampler, update as in the service, and outputs handed to the service's own outbox on an event loop in another
thread, which makes the message of each step.

Measured are decoding steps of --sequences at the first of --contexts, of --context-sequences at each of them, and steps with a
whole prompt of each of --prefill tokens; each --steps times without a clock inside, which gives the time of the step, and as often
with one, taking turns, which gives its stages (engine/stages.py). Medians. A prompt of each context is also computed from its
begin, in as many steps as the engine takes for it. Prompt lookup is off: a step brings each sequence one token.

With --costs-file, steps are measured, too, whose prompt follows 1,024 cached tokens, and in which --context-sequences decode while
the engine's pacer computes a prompt. What a step costs is fitted to all that was measured. By how much those of the last kind
differ that have as many sequences and prompt tokens is their noise. Both are written for simulated engines (--engine.simulate).

Results go to benchmarks/results/<date>-<name>.json. For two commits, or two settings, measure by turns and use benchmarks.compare.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from pydantic_settings import CliApp
from triptych_common.model.store import TEXT_MODEL

from benchmarks.engine.costs import fit
from benchmarks.engine.local import EngineCore, EngineSettings, LoadedEngine, Request, SamplingParams, load_engine
from benchmarks.engine.outside import Outside
from benchmarks.engine.stages import STAGES, TimedSteps
from benchmarks.harness.machine import BusyMeter
from benchmarks.harness.sitting import check_positive, describe, new_parser
from benchmarks.harness.targets import describe_load
from benchmarks.report.hold import hold

#: Steps before those that count: the first of a batch size finds no buffers.
_NUM_WARM_UP = 2
#: Steps, at most, in which some sequences decode already while others still compute the end of their prompts; and the warm-up's.
_MAX_SETUP_STEPS = 64
#: Tokens of a prompt that is computed beside streams, and of those in the cache before others.
_MIXED_PROMPT = 1024


class Bench:
    """An engine on this thread, and requests to fill it with."""

    def __init__(self, loaded: LoadedEngine, outside: Outside) -> None:
        self._scheduler, self._outside, self._vocab_size = loaded.scheduler, outside, loaded.runner.vocab_size
        core = EngineCore(loaded.scheduler, loaded.executor, outside.publish)
        self._steps = TimedSteps(core, loaded.scheduler, loaded.runner)
        self._ids = itertools.count()

    def decode(self, num_seqs: int, context: int, num_steps: int) -> dict:
        """Steps in which so many sequences compute one token each.

        The n-th sequence begins alike for all contexts: what was computed for a shorter one is in the prefix cache.
        """
        prompts = [self._tokens(index, context) for index in range(num_seqs)]
        for prompt in prompts:  # alone, so that all begin to decode at nearly the same time
            self._until_first_token([self._add(prompt, 1)])
        self._until_first_token([self._add(prompt, _MAX_SETUP_STEPS + 2 * num_steps) for prompt in prompts])
        measured = self._measure(num_steps)
        self._end()
        return {"phase": "decode", "num_seqs": num_seqs, "context": context, **measured}

    def prefill(self, num_tokens: int, num_steps: int, num_before: int = 0) -> dict:
        """Steps with the end of one prompt in each, which nobody has seen before; the tokens before it are in the prefix cache."""
        begin = self._tokens(0, num_before)
        if begin:
            self._until_first_token([self._add(begin, 1)])

        def next_prompt() -> None:
            self._end()
            self._add(begin + self._tokens(None, num_tokens), 2)

        measured = self._measure(num_steps, next_prompt)
        self._end()
        return {"phase": "prefill", "num_tokens": num_tokens, "num_before": num_before, **measured}

    def mixed(self, num_seqs: int, context: int, num_tokens: int) -> list[dict]:
        """The steps that compute a new prompt, as much in each as the pacer allows, while so many sequences decode."""
        streams = [self._add(self._tokens(index, context), _MAX_SETUP_STEPS + num_tokens) for index in range(num_seqs)]
        self._until_first_token(streams)
        prompt, found = self._add(self._tokens(None, num_tokens), 2), list[dict]()
        while not prompt.num_output_tokens:
            before = prompt.num_computed_tokens
            step_ms = self._steps.plain()
            size = {"num_tokens": prompt.num_computed_tokens - before, "num_before": before}
            found.append({"phase": "mixed", "num_seqs": num_seqs, "context": context + len(found), **size, "step_ms": step_ms})
        self._end()
        return found

    def whole_prompt(self, num_tokens: int) -> dict:
        """A new prompt from its begin to its first token, in as many steps as that takes."""
        started_s = time.perf_counter()
        num_steps = self._until_first_token([self._add(self._tokens(None, num_tokens), 2)])
        seconds = time.perf_counter() - started_s
        self._end()
        return {"prompt_tokens": num_tokens, "num_steps": num_steps, "seconds": seconds}

    def _measure(self, num_steps: int, before_each: Callable[[], None] = lambda: None) -> dict:
        for _ in range(_NUM_WARM_UP):
            before_each()
            self._steps.plain()
        plain, clocked = [], []
        for _ in range(num_steps):
            before_each()
            plain.append(self._steps.plain())
            before_each()
            clocked.append(self._steps.by_stage())
        return {
            "num_steps": num_steps,
            "step_ms": statistics.median(plain),
            "step_ms_with_clock": statistics.median(step_ms for step_ms, _ in clocked),
            "stages_ms": {stage: statistics.median(stages[stage] for _, stages in clocked) for stage in STAGES},
        }

    def _tokens(self, index: int | None, count: int) -> list[int]:
        """Random ids: of a numbered sequence always the same ones, else such as were never there."""
        return np.random.default_rng(index).integers(self._vocab_size, size=count).tolist()

    def _add(self, token_ids: list[int], max_tokens: int) -> Request:
        request = Request(f"bench-{next(self._ids)}", token_ids, SamplingParams(max_tokens=max_tokens, temperature=0.0))
        self._outside.expect(request.request_id)
        self._scheduler.add(request)
        return request

    def _until_first_token(self, requests: list[Request]) -> int:
        """Run steps until each of the requests has one; returns how many."""
        num_steps = 0
        while any(not request.num_output_tokens for request in requests):
            self._steps.plain()
            num_steps += 1
        return num_steps

    def _end(self) -> None:
        request_ids = self._scheduler.live_request_ids
        self._outside.forget(request_ids)
        self._scheduler.abort(request_ids)


def print_run(run: dict) -> None:
    """One line: what it was, the step, its stages."""
    what = f"{run['num_seqs']} x {run['context']} tokens" if run["phase"] == "decode" else f"a prompt of {run['num_tokens']} tokens"
    stages = ", ".join(f"{stage} {ms:.2f}" for stage, ms in run["stages_ms"].items())
    print(f"{run['phase']}, {what}: {run['step_ms']:.1f} ms, with a clock {run['step_ms_with_clock']:.1f}: {stages}", flush=True)


def run(args: argparse.Namespace) -> dict:
    """Load the engine and measure; returns the results."""
    flags = ["--model", args.model, "--kv-cache-memory", args.kv_cache_memory, "--no-prompt-lookup", *args.serve_args]
    runs, prompts = [], []
    with Outside() as outside:
        loaded = load_engine(CliApp.run(EngineSettings, cli_args=flags))
        bench = Bench(loaded, outside)
        described = describe("steps")
        meter = BusyMeter([psutil.Process()])
        sizes = [(num_seqs, args.contexts[0]) for num_seqs in args.sequences]
        sizes += [(num_seqs, context) for context in args.contexts for num_seqs in args.context_sequences]
        for num_seqs, context in dict.fromkeys(sizes):
            runs.append(bench.decode(num_seqs, context, args.steps))
            print_run(runs[-1])
        for num_tokens in args.prefill:
            runs.append(bench.prefill(num_tokens, args.steps))
            print_run(runs[-1])
        for repeat in range(args.repeats):
            for num_tokens in args.contexts:
                prompts.append({"repeat": repeat, **bench.whole_prompt(num_tokens)})
                print("prompt of {prompt_tokens} tokens: {seconds:.2f} s in {num_steps} steps".format(**prompts[-1]), flush=True)
        mixed: list[dict] = []
        if args.costs_file is not None:
            for num_tokens in args.prefill:
                mixed.append(bench.prefill(num_tokens, args.steps, _MIXED_PROMPT))
            for num_seqs in args.context_sequences * args.repeats:
                mixed += bench.mixed(num_seqs, args.contexts[0], _MIXED_PROMPT)
            write_costs(args.costs_file, runs + mixed, prompts, loaded.scheduler.kv_cache.pool.num_blocks)
        described["others_percent"] = meter.percent()["others"]
    keys = ("sequences", "contexts", "context_sequences", "prefill", "steps", "repeats", "kv_cache_memory")
    return {**described, "load": describe_load(args, *keys), "runs": runs, "prompts": prompts, "mixed": mixed}


def write_costs(path: Path, runs: list[dict], prompts: list[dict], num_blocks: int) -> None:
    """The file for engines that are simulated."""
    costs, error = fit(runs, prompts)
    told = dataclasses.asdict(costs)
    path.write_text(json.dumps({**told.pop("steps"), **told, "num_blocks": num_blocks}, indent=1) + "\n")
    print(f"a step costs {costs}; no measured one differs by more than {100 * error:.0f} %; wrote {path.name}")


def parse_args() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--model", default=TEXT_MODEL)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32, 64], metavar="N", help="in a decoding step")
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 512, 1024, 2048, 4096], metavar="N", help="tokens")
    parser.add_argument("--context-sequences", type=int, nargs="+", default=[1, 8], metavar="N", help="at each of the contexts")
    parser.add_argument(
        "--prefill",
        type=int,
        nargs="+",
        default=[16, 32, 48, 64, 96, 128, 256, 512],
        metavar="N",
        help="tokens of a prompt that one step computes",
    )
    parser.add_argument("--steps", type=int, default=20, help="that are timed without a clock inside, and as many with one")
    parser.add_argument("--repeats", type=int, default=2, help="how often each whole prompt is computed")
    parser.add_argument("--kv-cache-memory", default="2G", help="of the engine; room for the longest contexts together")
    parser.add_argument(
        "--costs-file", type=Path, metavar="FILE", help="write the costs of a step to it, fitted to the measured ones"
    )
    parser.add_argument("--name", default="steps", help="of the results file")
    parser.add_argument("serve_args", nargs="*", help="after --: flags for `triptych engine`")
    args = parser.parse_args()
    check_positive(parser, *args.sequences, *args.contexts, *args.context_sequences, *args.prefill, args.steps, args.repeats)
    return args


def main() -> None:
    args = parse_args()
    hold(lambda: run(args), lambda results: 0, args.name)


if __name__ == "__main__":
    main()
