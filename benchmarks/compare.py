"""Two commits, or two settings, by result files that were measured by turns: figure after figure, before over after.

    python -m benchmarks.compare --before a1.json a2.json --after b1.json b2.json

The n-th file before and the n-th after are a pair; told are the median of the pairs' ratios, and the smallest and the largest.
Files of benchmarks.steps and benchmarks.attention; above 1 the second is faster.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.sitting import new_parser
from benchmarks.report.tables import ratio


def times_ms(results: dict) -> dict[str, float]:
    """What was measured -> its milliseconds."""
    if isinstance(results.get("cases"), dict):
        return {name: statistics.median(case["ms"]) for name, case in results["cases"].items()}
    found = {}
    for run in results["runs"]:
        name = f"decode {run['num_seqs']} x {run['context']}" if run["phase"] == "decode" else f"prefill {run['num_tokens']}"
        found[name] = run["step_ms"]
    for length in dict.fromkeys(one["prompt_tokens"] for one in results["prompts"]):
        seconds = [one["seconds"] for one in results["prompts"] if one["prompt_tokens"] == length]
        found[f"whole prompt {length}"] = 1e3 * statistics.median(seconds)
    return found


def compare(before: Sequence[dict], after: Sequence[dict]) -> list[str]:
    """A line for each figure that all files have. Raises ValueError where the files make no pairs."""
    pairs = [(times_ms(first), times_ms(second)) for first, second in zip(before, after, strict=True)]
    lines = []
    for name in pairs[0][0]:
        if all(name in first and name in second for first, second in pairs):
            middles = [statistics.median(times[name] for times in side) for side in zip(*pairs, strict=True)]
            ratios = [first[name] / second[name] for first, second in pairs]
            lines.append(f"{name:36s} {middles[0]:9.2f} ms {middles[1]:9.2f} ms   {ratio(ratios)}")
    return lines


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--before", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--after", type=Path, nargs="+", required=True, metavar="FILE")
    args = parser.parse_args()
    if len(args.before) != len(args.after):
        parser.error("as many files before as after are needed")
    sides = ([json.loads(path.read_text(encoding="utf-8")) for path in paths] for paths in (args.before, args.after))
    print("\n".join(compare(*sides)))


if __name__ == "__main__":
    main()
