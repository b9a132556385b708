"""The table of what benchmarks.numerics measured."""

from __future__ import annotations

from benchmarks.report.tables import count, origin, table


def render(results: dict, source: str) -> str:
    """How far each way of computing is from float32, with the figures of all texts in a cell."""
    load, runs = results["load"], results["runs"]
    words = f"the first {count(load['num_tokens'], 'token')} of {', '.join(load['texts'])}"
    rows = []
    for model, way in dict.fromkeys((run["model"], run["way"]) for run in runs):
        of_texts = [run for run in runs if (run["model"], run["way"]) == (model, way)]
        cells = (
            " / ".join(form.format(run[figure]) for run in of_texts)
            for figure, form in (
                ("divergence", "{:.4f}"),
                ("agreement", "{:.1%}"),
                ("perplexity", "{:.2f}"),
                ("relative_rmse", "{:.2%}"),
            )
        )
        rows.append((model, way, *cells))
    head = ("model", "computed by", "KL divergence", "likeliest token is the same", "perplexity", "error of the logits")
    return "\n\n".join([origin(results, source, words), table(head, rows)])
