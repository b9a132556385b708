"""The table of what benchmarks.speculation measured."""

from __future__ import annotations

import statistics

from benchmarks.report.tables import count, origin, table


def speed_up(run: dict) -> float:
    """How many times as fast the answers of a round came with draft tokens."""
    plain, lookup = (sum(pair[way]["decode_s"] for pair in run["pairs"]) for way in ("plain", "lookup"))
    return plain / lookup


def render(results: dict, source: str) -> str:
    """Kinds of chats, medians of the rounds."""
    load = results["load"]
    words = (
        f"{count(load['chats'], 'chat')} of each kind, answers of at most {load['max_tokens']} tokens at temperature"
        f" {load['temperature']:g}, {count(load['rounds'], 'round')}; each answer with draft tokens and without, by turns"
    )
    rows = []
    for name, concurrency in dict.fromkeys((run["chats"], run["concurrency"]) for run in results["runs"]):
        runs = [run for run in results["runs"] if (run["chats"], run["concurrency"]) == (name, concurrency)]
        ratios = [speed_up(run) for run in runs]
        pairs = [pair for run in runs for pair in run["pairs"]]

        def total(way: str, figure: str, pairs: list[dict] = pairs) -> float:
            return sum(pair[way][figure] for pair in pairs)

        drafts, accepted = total("lookup", "num_draft_tokens"), total("lookup", "num_accepted_tokens")
        rows.append(
            (
                name,
                str(concurrency),
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                f"{total('plain', 'num_tokens') / total('plain', 'decode_s'):.0f}",
                f"{total('lookup', 'num_tokens') / total('lookup', 'decode_s'):.0f}",
                f"{accepted / drafts:.2f} of {drafts / total('lookup', 'num_tokens'):.2f}" if drafts else "none",
                str(sum(pair["num_different"] for pair in pairs)),
            )
        )
    speeds = ("times as fast", "tok/s without", "tok/s with")
    head = ("chats", "at a time", *speeds, "accepted of draft tokens per token", "answers that differ")
    return "\n\n".join([origin(results, source, words), table(head, rows)])
