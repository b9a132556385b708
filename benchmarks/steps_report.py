"""Tables and charts of what benchmarks/steps.py measured."""

from __future__ import annotations

from collections.abc import Sequence

from charts import BarChart, BarPanel, Chart, Line, LineChart
from tables import distinct, known_median, origin, table

_WITHIN = (
    "Inside of a decoder layer that is one call of a kernel, the kernel's own clock tells products and attention from the rest"
    " ([`stage_clock.h`](../services/triptych_engine/runner/csrc/stage_clock.h)); elsewhere a clock stands around each part. The"
    " time of the step is of steps without any clock inside. Message: what an event loop in another thread needs meanwhile for the"
    " step's message."
)


def render(results: dict, source: str) -> str:
    """Stages of a step, then the cost of contexts, then prompts."""
    return "\n\n".join([origin(results, source, _load(results["load"])), _stages(results), _contexts(results), _prompts(results)])


def charts(results: dict) -> dict[str, Chart]:
    """Stages of a step, the cost of contexts, prompts by length."""
    runs = _breakdowns(results)
    made: dict[str, Chart] = {
        "stages": BarChart(
            "One engine step by stage",
            "ms",
            list(runs[0]["stages_ms"]),
            [BarPanel(f"{_name(run)}:\n{run['step_ms']:.1f} ms", list(run["stages_ms"].values())) for run in runs],
            about="Each panel has a scale of its own.",
        )
    }
    contexts = results["load"]["contexts"]
    if len(contexts) > 1:
        ticks = tuple((float(context), f"{context:,}") for context in contexts)
        lines = []
        for num_seqs in results["load"]["context_sequences"]:
            label = "1 sequence" if num_seqs == 1 else f"{num_seqs} sequences"
            own = [run for run in _decodes(results) if run["num_seqs"] == num_seqs]
            lines.append(Line(label, [(run["context"], run["step_ms"]) for run in own]))
            attention = [(run["context"], run["step_ms"] - run["stages_ms"]["attention"]) for run in own]
            lines.append(Line("without attention", attention, kin=label))
        made["contexts"] = LineChart(
            "Time of a decoding step against the tokens of context",
            "tokens of context of each sequence",
            "ms per step",
            lines,
            x_ticks=ticks,
            log_x=True,
        )
        made["prompts"] = LineChart(
            "Prompt tokens per second against the length of the prompt",
            "tokens of the prompt",
            "tokens/s",
            [Line("one prompt", [(tokens, tokens / seconds) for tokens, seconds in _prompt_seconds(results)])],
            x_ticks=ticks,
            log_x=True,
        )
    return made


def _load(load: dict) -> str:
    return (
        f"{load['model']}, the step loop in one process, {load['steps']} steps each (medians), whole prompts {load['repeats']}"
        f" times, KV cache {load['kv_cache_memory']}"
    )


def _decodes(results: dict) -> list[dict]:
    return [run for run in results["runs"] if run["phase"] == "decode"]


def _breakdowns(results: dict) -> list[dict]:
    """The runs whose stages are told: those at the first context, and the prefill."""
    sequences, context = results["load"]["sequences"], results["load"]["contexts"][0]
    decodes = [run for run in _decodes(results) if run["context"] == context and run["num_seqs"] in sequences]
    return decodes + [run for run in results["runs"] if run["phase"] == "prefill"]


def _name(run: dict) -> str:
    if run["phase"] == "prefill":
        return f"{run['num_tokens']} prompt tokens"
    return "1 sequence" if run["num_seqs"] == 1 else f"{run['num_seqs']} sequences"


def _stages(results: dict) -> str:
    runs = _breakdowns(results)
    rows = [[stage, *(_ms(run["stages_ms"][stage]) for run in runs)] for stage in runs[0]["stages_ms"]]
    rows.append(["**step**", *(f"**{run['step_ms']:.1f}**" for run in runs)])
    rows.append(["sum of the stages, clocks running", *(f"{run['step_ms_with_clock']:.1f}" for run in runs)])
    rows.append(["message, beside the step", *(_ms(run["message_ms"]) for run in runs)])
    context = results["load"]["contexts"][0]
    title = f"### One step by stage, in ms ({context} tokens of context; the last column a whole prompt in one step)"
    return f"{title}\n\n{table(['stage', *map(_name, runs)], rows)}\n\n{_WITHIN}"


def _contexts(results: dict) -> str:
    head = ["tokens of context", "sequences", "step, ms", "of it attention, ms", "per output token, ms", "against the shortest"]
    rows = []
    for num_seqs in results["load"]["context_sequences"]:
        own = [run for run in _decodes(results) if run["num_seqs"] == num_seqs]
        for run in own:
            cells = [run["step_ms"], run["stages_ms"]["attention"], run["step_ms"] / num_seqs]
            rows.append([f"{run['context']:,}", str(num_seqs), *map(_ms, cells), f"{run['step_ms'] / own[0]['step_ms']:.2f}"])
    return f"### A decoding step as contexts grow\n\n{table(head, rows)}"


def _prompts(results: dict) -> str:
    rows = [[f"{tokens:,}", f"{seconds:.2f}", f"{tokens / seconds:.0f}"] for tokens, seconds in _prompt_seconds(results)]
    return f"### Prompts by length\n\n{table(['tokens of the prompt', 'until its first token, s', 'prompt tokens/s'], rows)}"


def _prompt_seconds(results: dict) -> list[tuple[int, float]]:
    """(tokens, median of the seconds) of whole prompts."""
    prompts: Sequence[dict] = results["prompts"]
    return [
        (tokens, known_median(one["seconds"] for one in prompts if one["prompt_tokens"] == tokens) or 0.0)
        for tokens in distinct(one["prompt_tokens"] for one in prompts)
    ]


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"
