"""The table of what benchmarks.hybrids measured."""

from __future__ import annotations

import statistics

from benchmarks.report.tables import origin, ratio, table


def render(results: dict, source: str) -> str:
    """Each shape and number of streams, beside transformers."""
    load = results["load"]
    what = (
        f"prompts of {load['prompt_tokens']} tokens, {load['max_tokens']} output tokens, {load['repeats']} rounds; random weights"
    )
    rows = []
    for shape in results["shapes"]:
        name = f"{shape['shape']}, {shape['num_parameters'] / 1e6:.0f} M, {shape['state_bytes'] / 1e6:.1f} MB of state"
        for streams in load["streams"]:
            runs = [run for run in shape["runs"] if run["num_streams"] == streams]
            own, theirs = (statistics.median(run[key] for run in runs) for key in ("tokens_per_s", "transformers_tokens_per_s"))
            rows.append([name, f"{streams}", f"{own:.1f}", f"{theirs:.1f}", ratio([run["ratio"] for run in runs])])
    found = [
        [one["shape"], f"{one['prefix']['cached_tokens']}", f"{one['prefix']['first_s']:.2f}", f"{one['prefix']['again_s']:.3f}"]
        for one in results["shapes"]
    ]
    prompts = f"a prompt of {load['prefix']} tokens, s to the first token"
    return "\n\n".join(
        [
            origin(results, source, what),
            table(["shape", "streams", "tokens/s", "transformers, tokens/s", "ratio"], rows),
            table(["shape", "tokens found the second time", prompts, "the second time"], found),
        ]
    )
