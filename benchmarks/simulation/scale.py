"""What a fleet does by policy, load, loss of engines and number of engines: simulated only.

    python -m benchmarks.simulation.scale --costs-file costs.json --overheads benchmarks/results/<date>-simulation-compare.json
    python -m benchmarks.simulation.scale --costs-file costs.json --overheads FILE --engines 1000 --streams 100000 --parts largest

Parts: `load` and `losses` compare the policies; `frontends` changes their number; `largest` is one run of --streams requests with
the default policy. The processor time that a frontend needs to compare an engine is measured first, in this process, with the real
policies. It enters the simulation as a constant, so the same command with `--choice` gives the same figures anywhere. What a token
costs a busy frontend comes from benchmarks.streams. What a request costs it besides the choice is an assumption.

Results go to benchmarks/results/<date>-<name>.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

from triptych_engine.executor.simulated import SimulatedEngine
from triptych_frontend.engines.policy import Routing

from benchmarks.harness.sitting import check_positive, describe, new_parser
from benchmarks.report.hold import hold
from benchmarks.simulation.choice import choice_costs
from benchmarks.simulation.figures import Limits
from benchmarks.simulation.setup import Overheads, Setup
from benchmarks.simulation.simulate import Simulation
from benchmarks.simulation.workload import Workload

POLICIES: tuple[Routing, ...] = ("prefix", "least-load", "round-robin")
PARTS = ("load", "losses", "frontends", "largest")
#: Part, changes of the setup, requests per second and engine, and number of requests of a run.
Plan = tuple[str, dict, float, int]
#: Fewest and most turns of a conversation.
_TURNS = (1, 4)


def workload(requests_per_s: float, num_requests: int, num_systems: int) -> Workload:
    """Conversations with shared system prompts: about so many requests at this rate."""
    conversations_per_s = requests_per_s / (sum(_TURNS) / 2)
    duration_s = num_requests / requests_per_s
    return Workload("fleet", conversations_per_s, duration_s, num_systems, (200, 800), _TURNS, (20, 300), (20, 120), (32, 160), 2.0)


def run(args: argparse.Namespace) -> dict:
    """All parts."""
    described, engine = describe("simulation.scale"), SimulatedEngine.read(args.costs_file)
    told = json.loads(args.overheads.read_text())
    choice = json.loads(args.choice) if args.choice else choice_costs(args.engines)
    print(f"time to compare an engine, us: { {name: round(1e6 * seconds, 2) for name, seconds in choice.items()} }", flush=True)
    fitted = Overheads(**told["overheads"])
    request_s, token_s = args.frontend_request_ms / 1e3, args.frontend_token_us / 1e6
    overheads = replace(fitted, frontend_request_s=request_s, frontend_token_s=token_s, choice_s=choice)
    setup = Setup(engine.costs, args.blocks, args.engines, args.frontends, overheads=overheads)
    limits = Limits(args.ttft_limit_s, args.token_limit_s)
    # Each run has a process of its own, so neither their number nor their order changes a figure.
    with ProcessPoolExecutor(args.jobs, max_tasks_per_child=1, mp_context=get_context("spawn")) as processes:
        started = [processes.submit(simulate, setup, plan, limits, args.systems, args.seed) for plan in plans(args, setup)]
        for future in as_completed(started):
            print_run(future.result())
        runs = [future.result() for future in started]
    keys = ("engines", "frontends", "blocks", "streams", "requests", "rates", "systems", "seed", "parts")
    return {
        **described,
        "load": {key: getattr(args, key) for key in keys},
        "costs": engine.model_dump(exclude={"num_blocks"}),
        "limits": asdict(limits),
        "overheads": asdict(overheads),
        "runs": runs,
    }


def simulate(setup: Setup, plan: Plan, limits: Limits, num_systems: int, seed: int) -> dict:
    """One run."""
    part, changes, rate, num_requests = plan
    changed = replace(setup, **changes)
    started_s = time.perf_counter()
    load = workload(rate * changed.num_engines, num_requests, num_systems)
    figures = Simulation(changed).run(load.conversations(seed), limits)
    host_s = time.perf_counter() - started_s
    row = {
        "part": part,
        "policy": changed.routing,
        "rate": rate,
        "engines": changed.num_engines,
        "frontends": changed.num_frontends,
    }
    return {**row, "num_losses": len(changed.losses), **figures, "host_s": host_s}


def plans(args: argparse.Namespace, setup: Setup) -> Iterator[Plan]:
    """All runs."""
    middle = args.rates[len(args.rates) // 2]
    if "load" in args.parts:
        for rate, policy in itertools.product(args.rates, POLICIES):
            yield "load", {"routing": policy}, rate, args.requests
    if "losses" in args.parts:
        # A tenth of the engines, at half of the time, all at once.
        at_s = args.requests / (middle * setup.num_engines) / 2
        losses = tuple((at_s, number) for number in range(0, setup.num_engines, 10))
        for policy in POLICIES:
            yield "losses", {"routing": policy, "losses": losses}, middle, args.requests
    if "frontends" in args.parts:
        for count in (setup.num_frontends // 4, setup.num_frontends // 2, setup.num_frontends * 2):
            yield "frontends", {"num_frontends": max(1, count)}, middle, args.requests
    if "largest" in args.parts:
        yield "largest", {}, args.rates[-1], args.streams


def print_run(run: dict) -> None:
    """One line of figures."""
    print(
        f"{run['part']:10} {run['policy']:12} {run['engines']} engines, {run['frontends']} frontends, {run['rate']:.2f}/s each: "
        f"good {run['good_share']:.3f}, hits {run['hits']:.3f}, TTFT p50 {run['ttft_p50_ms']:.0f} ms, p99 {run['ttft_p99_ms']:.0f} "
        f"ms, load max/mean {run['max_by_mean_load']:.2f}, engines busy {run['engine_busy']:.2f}, frontends "
        f"{run['frontend_busy']:.2f}, "
        f"{run['num_failed']} failed, {run['num_moved']} moved, {run['most_live']} at once, in {run['host_s']:.0f} s",
        flush=True,
    )


def parse_args() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--costs-file", type=Path, required=True, help="of an engine, as benchmarks.steps writes it")
    parser.add_argument("--overheads", type=Path, required=True, help="results of benchmarks.simulation.compare")
    parser.add_argument("--choice", help="seconds to compare one engine by policy, as JSON, instead of measuring them")
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--frontends", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=3000, help="of the KV cache of each engine, 16 tokens each")
    parser.add_argument("--requests", type=int, default=20000, help="of each run but the largest")
    parser.add_argument("--streams", type=int, default=100000, help="requests of the largest run")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.4, 0.8, 1.2, 1.6], help="requests per second and engine")
    parser.add_argument("--systems", type=int, default=200, help="system prompts in all")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--ttft-limit-s", type=float, default=1.0, help="longest TTFT that counts for goodput")
    parser.add_argument("--token-limit-s", type=float, default=0.1, help="longest mean time between two tokens that counts")
    parser.add_argument("--frontend-request-ms", type=float, default=1.0, help="processor time of a frontend besides the choice")
    parser.add_argument("--frontend-token-us", type=float, default=34.0, help="processor time of a frontend with many streams")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="simulation-scale", help="of the results file")
    args = parser.parse_args()
    check_positive(parser, args.engines, args.frontends, args.blocks, args.requests, args.streams, args.jobs, *args.rates)
    return args


def main() -> None:
    args = parse_args()
    hold(lambda: run(args), lambda results: sum(run["num_failed"] for run in results["runs"]), args.name)


if __name__ == "__main__":
    main()
