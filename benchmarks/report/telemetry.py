"""Tables of what benchmarks.telemetry measured."""

from __future__ import annotations

from benchmarks.report.tables import count, origin, ratio, table

#: The kind of a round that is not traced.
OFF = "off"


def cpu_per_token(figures: dict) -> float:
    """Processor time of all services, in seconds."""
    return sum(figures["cpu_s"].values()) / figures["num_output_tokens"]


def render_tracing(results: dict, source: str) -> str:
    """What tracing costs."""
    load, rounds = results["load"], results["rounds"]
    words = (
        f"{load['model']}, {count(load['streams'], 'stream')} at once, {load['max_tokens']} tokens each,"
        f" {count(load['rounds'], 'round')} by turns"
    )
    rows = []
    for kind in rounds[0]:
        if kind != OFF:
            speed = [one[kind]["output_tokens_per_s"] / one[OFF]["output_tokens_per_s"] for one in rounds]
            cpu = [cpu_per_token(one[kind]) / cpu_per_token(one[OFF]) for one in rounds]
            rows.append((kind, ratio(speed), ratio(cpu)))
    header = ("", "tokens/s against no tracing (median of the rounds, smallest and largest)", "processor time per token, the same")
    return "\n\n".join([origin(results, source, words), table(header, rows)])
