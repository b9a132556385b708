"""The table of what benchmarks.numerics measured."""

from __future__ import annotations

from benchmarks.report.tables import count, origin, table


def render(results: dict, source: str) -> str:
    """How far each way of computing is from float32: the smallest and the largest of the texts' figures."""
    load, runs = results["load"], results["runs"]
    words = f"the first {count(load['num_tokens'], 'token')} of {', '.join(load['texts'])}"
    rows = []
    for model, way in dict.fromkeys((run["model"], run["way"]) for run in runs if run["divergence"]):
        of_texts = [run for run in runs if (run["model"], run["way"]) == (model, way)]
        cells = (
            f"{form.format(min(run[figure] for run in of_texts))}-{form.format(max(run[figure] for run in of_texts))}"
            for figure, form in (("divergence", "{:.4f}"), ("agreement", "{:.1%}"), ("relative_rmse", "{:.2%}"))
        )
        rows.append((model, way, *cells))
    head = ("model", "computed by", "KL divergence", "likeliest token is the same", "error of the logits")
    return "\n\n".join([origin(results, source, words), table(head, rows)])
