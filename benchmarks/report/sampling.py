"""Tables of what benchmarks.constraints and benchmarks.sampling measured."""

from __future__ import annotations

from benchmarks.report.tables import count, origin, ratio, table

_SPEED = ("", "speed against free ones (median of the rounds, smallest and largest)")


def render_streams(results: dict, source: str) -> str:
    """What constraints cost streams."""
    load, rounds = results["load"], results["rounds"]
    words = (
        f"{load['model']}, {count(load['streams'], 'stream')} at once, {load['max_tokens']} tokens each, temperature 1, a JSON"
        f" schema that no output completes, {count(load['rounds'], 'round')} by turns"
    )
    rows = [
        ("all streams constrained", ratio([one["constrained"]["all"] / one["free"]["all"] for one in rounds])),
        ("the free streams, every other one constrained", ratio([one["mixed"]["even"] / one["free"]["even"] for one in rounds])),
    ]
    return "\n\n".join([origin(results, source, words), table(_SPEED, rows)])


def render_steps(results: dict, source: str) -> str:
    """What constraints cost steps of the engine."""
    load = results["load"]
    words = (
        f"{load['model']}, the step loop in one process, {load['steps']} steps of each kind in each of"
        f" {count(load['rounds'], 'round')}, temperature 1, a JSON schema that no output completes"
    )
    rows = []
    for run in results["runs"]:
        times = run["rounds_ms"]
        for kind, name in (("constrained", "all constrained"), ("mixed", "every other one constrained")):
            label = f"{count(run['num_seqs'], 'sequence')}, {name}"
            rows.append((label, ratio([one["free"] / one[kind] for one in times])))
    return "\n\n".join([origin(results, source, words), table(_SPEED, rows)])


def render_options(results: dict, source: str) -> str:
    """What options of sampling cost."""
    load = results["load"]
    words = (
        f"{load['model']}, the step loop in one process, prompts of random tokens, {load['steps']} steps of each kind in each of"
        f" {count(load['rounds'], 'round')}"
    )
    rows = []
    for run in results["runs"]:
        for kind, one in run["kinds"].items():
            label = f"{count(run['num_seqs'], 'sequence')}, {kind}"
            rows.append((label, f"{one['step_ms']:.1f}", f"{one['sampling_ms']:.2f}", f"{one['sampling_percent']:+.1f} %"))
    head = ("options", "step, ms", "from logits to tokens, ms", "more than greedy, of a greedy step")
    return "\n\n".join([origin(results, source, words), table(head, rows)])
