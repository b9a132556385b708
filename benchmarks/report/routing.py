"""Tables of what benchmarks.routing, benchmarks.roles and benchmarks.offloading measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from benchmarks.report.tables import count, origin, table


def render(results: dict, source: str) -> str:
    """Policies and numbers of frontends, medians of the repeats."""
    load, costs = results["load"], results["costs"]
    words = (
        f"{count(load['users'], 'user')} of {load['turns']} turns, {load['concurrency']} at once, {load['max_tokens']} tokens each,"
        f" {count(load['engines'], 'simulated engine')} of {load['blocks']} blocks, whose steps take {1e3 * costs['fixed_s']:.1f}"
        f" ms, {1e3 * costs['decode_s']:.2f} ms per decoding sequence and {1e3 * costs['prompt_token_s']:.2f} ms per prompt token;"
        f" one engine with the memory of all is as many times faster"
    )
    rows = []
    for policy, frontends in dict.fromkeys((run["policy"], run["frontends"]) for run in results["runs"]):
        runs = [run for run in results["runs"] if (run["policy"], run["frontends"]) == (policy, frontends)]
        rows.append(
            (
                policy,
                str(frontends),
                f"{statistics.median(run['hits'] for run in runs):.3f}",
                f"{statistics.median(run['ttft_ms']['p50'] for run in runs):.0f}",
                f"{statistics.median(run['ttft_ms']['p99'] for run in runs):.0f}",
                f"{statistics.median(run['tokens_per_s'] for run in runs):.0f}",
                f"{statistics.median(run['max_by_mean_load'] for run in runs):.2f}",
            )
        )
    head = ("routing", "frontends", "found in prefix caches", "TTFT p50, ms", "p99, ms", "tok/s", "load max/mean")
    return "\n\n".join([origin(results, source, words), table(head, rows)])


def render_roles(results: dict, source: str) -> str:
    """Streams beside long prompts, on engines with and without roles. Medians of the rounds, smallest and largest."""
    load, rounds = results["load"], results["rounds"]
    words = (
        f"{count(load['streams'], 'stream')}, beside them prompts of {load['prompt']} tokens, one at a time, with answers of"
        f" {load['answer']}; {load['seconds']:.0f} s in each of {count(len(rounds), 'round')}; medians, smallest and largest"
    )
    equal, answers = (sum(one[key] for one in rounds) for key in ("num_equal_answers", "num_answers"))
    figures: list[tuple[str, Callable[[dict], float], str]] = [
        ("ITL p50 without long prompts, ms", lambda one: one["itl_alone_ms"]["p50"], ".1f"),
        ("p99, ms", lambda one: one["itl_alone_ms"]["p99"], ".1f"),
        ("ITL p50 beside them, ms", lambda one: one["itl_beside_ms"]["p50"], ".1f"),
        ("p99, ms", lambda one: one["itl_beside_ms"]["p99"], ".1f"),
        ("p99 beside them / without", lambda one: one["p99_ratio"], ".2f"),
        ("output tokens/s", lambda one: one["output_tokens_per_s"], ".0f"),
        ("prompt tokens/s", lambda one: one["prompt_tokens_per_s"], ".0f"),
        ("first token of a long prompt, s", lambda one: statistics.median(one["ttft_s"]), ".2f"),
        ("its second token, s later", lambda one: statistics.median(one["second_token_s"]), ".2f"),
        ("transfer, s", lambda one: one["fetch_s"] / max(1, one["fetches"]), ".2f"),
    ]
    rows = []
    for label, value, form in figures:
        both = [sorted(value(one[setup]) for one in rounds) for setup in ("roles", "mixed")]
        rows.append((label, *(f"{statistics.median(some):{form}} ({some[0]:{form}} to {some[-1]:{form}})" for some in both)))
    head = ("", "one for prompts, one decodes", "both do all")
    note = f"The same answers to long prompts in both: {equal} of {answers}."
    return "\n\n".join([origin(results, source, words), table(head, rows), note])


def render_offloading(results: dict, source: str) -> str:
    """First tokens of conversations that come back. Medians of all, smallest and largest."""
    load, rounds = results["load"], results["rounds"]
    words = (
        f"{load['conversations']} conversations of {load['prompt']} tokens, of which the KV cache holds one; each comes back after"
        f" the others; {count(len(rounds), 'round')}"
    )
    rows = []
    for tier in rounds[0]:
        times = sorted(time_s for one in rounds for time_s in one[tier]["ttft_s"])
        tokens = sorted(num for one in rounds for num in one[tier]["cached_tokens"])
        figures = f"{statistics.median(times):.2f} ({times[0]:.2f} to {times[-1]:.2f})"
        rows.append((tier, figures, f"{statistics.median(tokens):.0f}"))
    head = ("blocks are", "first token after, s", "tokens that were not computed")
    return "\n\n".join([origin(results, source, words), table(head, rows)])
