"""Whether the simulator agrees with running services: the same workloads on both.

    python -m benchmarks.steps --costs-file costs.json -- --num-threads 1
    python -m benchmarks.simulation.compare --costs-file costs.json                      # engines with simulated steps
    python -m benchmarks.simulation.compare --costs-file costs.json --computes -- --engine.kv-cache-memory 256M
    python -m benchmarks.simulation.compare --costs-file costs.json --engines 64 --scale-rate 20

With --computes, engines compute, on one core each. Gateway, frontend and engines are started anew for each run, so all prefix
caches are empty.

What requests and tokens cost outside of engine steps is fitted to the medians of one workload's runs (--fitted). The simulator then
runs the others, which it has not seen, --orders times, each with another order of the requests that come at the same moment.
Medians are compared. With simulated steps, only the computation is not real. A real run during which other processes used more than
15 % of the cores is discarded and repeated; the results keep it apart.

Results go to benchmarks/results/<date>-<name>.json. The exit code is 1 when a request failed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from triptych_common.model.store import TEXT_MODEL
from triptych_engine.executor.simulated import SimulatedEngine

from benchmarks.harness.engines import engines_of, wait_until_all_serve
from benchmarks.harness.sitting import MAX_BUSY_PERCENT, check_positive, describe, new_parser
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.report.hold import hold
from benchmarks.simulation.figures import Limits
from benchmarks.simulation.fit import fit
from benchmarks.simulation.real import METRICS_FLAGS, measure, pin_engines
from benchmarks.simulation.setup import Overheads, Setup
from benchmarks.simulation.simulate import Simulation
from benchmarks.simulation.workload import CHATS, WORKLOADS, Conversation

#: Where the fit begins. A message between two processes of one machine takes about this long.
_START = Overheads(request_s=0.004, message_s=0.0003, answer_s=0.001, host_step_s=0.0005)


def run(args: argparse.Namespace) -> dict:
    """All real runs, the fit, and the simulated runs."""
    described, engine = describe("simulation.compare"), SimulatedEngine.read(args.costs_file)
    limits = Limits(args.ttft_limit_s, args.token_limit_s)
    loads = {name: _conversations(args, name) for name in args.workloads}
    kept = json.loads(args.real.read_text()) if args.real else {}
    real, discarded = (kept["real"], kept["discarded"]) if kept else _real_runs(args, engine, loads, limits)
    num_blocks = real[args.workloads[0]][0].get("num_blocks", args.blocks)
    setup = Setup(engine.costs, num_blocks, args.engines, args.frontends, args.policy, _START)
    if args.overheads:
        setup = replace(setup, overheads=Overheads(**json.loads(args.overheads.read_text())["overheads"]))
        error = None
    else:
        setup, error = fit(setup, loads[args.fitted], _medians(real[args.fitted]), limits, computes=args.computes)
    simulated: dict[str, list[dict]] = {}
    for name in args.workloads:
        jittered = [replace(setup, jitter_seed=number) for number in range(args.orders)]
        simulated[name] = [Simulation(one).run(loads[name], limits) for one in jittered]
        for found in simulated[name]:
            print_run(f"simulated, {name}", found)
    keys = ("engines", "frontends", "policy", "blocks", "seed", "computes", "scale_rate", "scale_duration", "fitted", "workloads")
    return {
        **described,
        "load": {key: getattr(args, key) for key in keys}
        | {"overheads_from": args.overheads and args.overheads.name, "real_from": args.real and args.real.name},
        "costs": engine.model_dump(exclude={"num_blocks"}),
        "limits": asdict(limits),
        "workload_parameters": {name: asdict(WORKLOADS[name]) for name in args.workloads},
        "overheads": asdict(setup.overheads),
        "fit_error": error,
        "real_command": kept.get("real_command", described["command"]),
        "real": real,
        "discarded": discarded,
        "simulated": simulated,
    }


def _real_runs(
    args: argparse.Namespace, engine: SimulatedEngine, loads: dict[str, list[Conversation]], limits: Limits
) -> tuple[dict[str, list[dict]], list[dict]]:
    """Those that count, by workload, and those that were discarded."""
    real: dict[str, list[dict]] = {name: [] for name in args.workloads}
    discarded: list[dict] = []
    for repeat in range(args.repeats):
        for name in args.workloads:
            while True:
                found = _real(args, engine, loads[name], limits)
                print_run(f"real {repeat + 1}, {name}", found)
                if found["others_percent"] <= MAX_BUSY_PERCENT or len(discarded) >= args.most_discarded:
                    break
                print("discarded: something else computed meanwhile", flush=True)
                discarded.append(found)
            real[name].append(found)
    return real, discarded


def _medians(runs: Sequence[dict]) -> dict:
    """Of each number, and of those that these consist of."""
    return {
        name: _medians([run[name] for run in runs]) if isinstance(value, dict) else statistics.median(run[name] for run in runs)
        for name, value in runs[0].items()
        if isinstance(value, (float, int, dict))
    }


def _conversations(args: argparse.Namespace, name: str) -> list[Conversation]:
    workload = WORKLOADS[name]
    rate, duration_s = workload.conversations_per_s * args.scale_rate, workload.duration_s * args.scale_duration
    return list(replace(workload, conversations_per_s=rate, duration_s=duration_s).conversations(args.seed))


def _real(args: argparse.Namespace, engine: SimulatedEngine, conversations: Sequence[Conversation], limits: Limits) -> dict:
    flags = ["--engines", str(args.engines), "--frontends", str(args.frontends), "--frontend.routing", args.policy]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "engine.json"
        file.write_text(json.dumps(engine.model_dump() | {"num_blocks": args.blocks}))
        own = ["--engine.num-threads", "1"] if args.computes else ["--engine.simulate", str(file)]
        with running_stack(args.model, [*flags, *own, *METRICS_FLAGS, *args.serve_args]) as stack:
            wait_until_all_serve(stack, args.engines)
            if args.computes:
                pin_engines(stack, args.engines)
            told = {"num_blocks": engines_of(stack)[0]["num_blocks"], "resident_mb": _resident_mb(stack)}
            return measure(stack, conversations, limits) | told


def _resident_mb(stack: Stack) -> dict[str, float]:
    """Resident memory of the largest process of each kind."""
    largest: dict[str, float] = {}
    for name, size in stack.resident().items():
        kind = name.partition("-")[0]
        largest[kind] = max(largest.get(kind, 0.0), round(size / 1e6, 1))
    return largest


def print_run(name: str, run: dict) -> None:
    """One line of figures."""
    print(
        f"{name:22} {run['num_requests']} requests, {run['num_failed']} failed, goodput {run['goodput_per_s']:.3f}/s, hits "
        f"{run['hits']:.3f}, TTFT p50 {run['ttft_p50_ms']:.0f} ms, p99 {run['ttft_p99_ms']:.0f} ms, tokens p50 "
        f"{run['token_p50_ms']:.1f} ms, p99 {run['token_p99_ms']:.1f} ms, load max/mean {run['max_by_mean_load']:.2f}, others busy "
        f"{run.get('others_percent', 0.0):.0f} %",
        flush=True,
    )


def parse_args() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--costs-file", type=Path, required=True, help="of an engine, as benchmarks.steps writes it")
    parser.add_argument("--computes", action="store_true", help="real engines compute, one thread and one core each")
    parser.add_argument("--model", default=TEXT_MODEL)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--frontends", type=int, default=1)
    parser.add_argument("--policy", default="prefix", choices=("prefix", "least-load", "round-robin"))
    parser.add_argument("--blocks", type=int, default=700, help="of 16 tokens in each KV cache of engines with simulated steps")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--fitted", default=CHATS.name, choices=list(WORKLOADS), help="the workload that constants are fitted to")
    parser.add_argument("--overheads", type=Path, help="results of another run: take its constants, fit none")
    parser.add_argument("--real", type=Path, help="results of another run: take its real runs, start no services")
    parser.add_argument("--orders", type=int, default=5, help="simulated runs, each with another order of simultaneous requests")
    parser.add_argument("--scale-rate", type=float, default=1.0, help="factor on the rate of conversations")
    parser.add_argument("--scale-duration", type=float, default=1.0, help="factor on the time in which conversations begin")
    parser.add_argument("--ttft-limit-s", type=float, default=1.0, help="longest TTFT that counts for goodput")
    parser.add_argument("--token-limit-s", type=float, default=0.1, help="longest mean time between two tokens that counts")
    parser.add_argument("--repeats", type=int, default=3, help="real runs of each workload")
    parser.add_argument("--most-discarded", type=int, default=6, help="real runs that are repeated because others used the cores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="simulation-compare", help="of the results file")
    parser.add_argument("serve_args", nargs="*", help="after --: flags for `triptych serve`")
    args = parser.parse_args()
    check_positive(
        parser, args.engines, args.frontends, args.blocks, args.scale_rate, args.scale_duration, args.repeats, args.orders
    )
    if not args.overheads and args.fitted not in args.workloads:
        parser.error("the workload that constants are fitted to must be one of --workloads")
    return args


def main() -> None:
    args = parse_args()
    hold(lambda: run(args), lambda results: sum(run["num_failed"] for runs in results["real"].values() for run in runs), args.name)


if __name__ == "__main__":
    main()
