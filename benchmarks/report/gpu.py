"""The table of what benchmarks.gpu measured."""

from __future__ import annotations

import statistics

from benchmarks.report.tables import count, origin, table


def render(results: dict, source: str) -> str:
    """Decode, prefill and both together, of each model."""
    ceilings, load = results["ceilings"], results["load"]
    words = (
        f"{results['machine']['device']}; in the same call a copy moved {ceilings['bytes_per_s'] / 1e12:.2f} TB/s, and a product"
        f" computed {ceilings['flops_per_s'] / 1e12:.0f} TFLOP/s; random weights in bfloat16, prompts of {load['prompt']} tokens,"
        f" {count(load['steps'], 'step')}"
    )
    rows = []
    for name, figures in results["shapes"].items():
        for one in figures["decode"]:
            step_s = statistics.median(one["steps_s"])
            share = f"{one['share_of_bandwidth']:.0%} of a copy's rate"
            rows.append(
                (name, f"decode, {count(one['batch_size'], 'sequence')}", _ms(step_s), f"{one['batch_size'] / step_s:,.0f}", share)
            )
        sampled, prefill, mixed = (figures[part] for part in ("sampled", "prefill", "mixed"))
        step_s, tokens = statistics.median(sampled["steps_s"]), sampled["batch_size"]
        rows.append((name, f"decode, {count(tokens, 'sequence')}, drawn with top_p", _ms(step_s), f"{tokens / step_s:,.0f}", ""))
        time_s, tokens = statistics.median(prefill["times_s"]), prefill["num_tokens"]
        # Results without `flops` counted the output head for all tokens.
        share = f"{prefill['share_of_matrix_rate']:.0%} of the matrix rate" if "flops" in prefill else ""
        rows.append((name, f"a prompt of {tokens:,} tokens", _ms(time_s), f"{tokens / time_s:,.0f}", share))
        prompts = f"{len(mixed['prompts'])} prompts of {mixed['prompts'][0]:,}"
        what = f"longest step of {count(mixed['batch_size'], 'sequence')} beside {prompts}"
        rows.append((name, what, _ms(max(mixed["steps_s"])), "", ""))
    return "\n\n".join([origin(results, source, words), table(("model", "what", "ms", "tokens/s", "share"), rows)])


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"
