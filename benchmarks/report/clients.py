"""Tables of what benchmarks.clients measured."""

from __future__ import annotations

from statistics import median

from benchmarks.report.tables import count, origin, ratio, table


def render_python(results: dict, source: str) -> str:
    """What the Python client costs beside raw stubs."""
    load, rounds = results["load"], results["rounds"]
    words = f"{count(load['streams'], 'stream')} at once, {load['tokens']} tokens each, {count(load['rounds'], 'round')} by turns"
    tokens = load["streams"] * load["tokens"]
    rows = [
        (
            name,
            f"{median(one[key]['cpu_us'] for one in rounds):.1f}",
            ratio([one[key]["cpu_us"] / one["stubs"]["cpu_us"] for one in rounds]),
            f"{median(tokens / one[key]['wall_s'] for one in rounds):,.0f}",
            ratio([one[key]["wall_s"] / one["stubs"]["wall_s"] for one in rounds]),
        )
        for key, name in (("stubs", "stubs of grpc.aio"), ("client", "triptych.AsyncClient"))
    ]
    head = ("", "processor time of a token, µs", "against stubs", "tokens/s", "wall time against stubs")
    return "\n\n".join([origin(results, source, words), table(head, rows)])
