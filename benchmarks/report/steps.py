"""Tables and charts of what benchmarks.steps measured."""

from __future__ import annotations

from statistics import median

from benchmarks.report.plots import Chart, Line
from benchmarks.report.tables import count, distinct, known_median, origin, ratio, section, table

_WITHIN = (
    "Within one call of a kernel, the kernel's own clock measures the parts (`stage_clock.h`). The time of the step is of steps"
    " without any clock inside."
)


def render(results: dict, source: str) -> str:
    """Stages of a step, then the cost of contexts, then prompts."""
    return "\n\n".join([render_stages(results, source), _contexts(results), _prompts(results)])


def render_stages(results: dict, source: str) -> str:
    """Stages of a step."""
    load = results["load"]
    words = (
        f"{load['model']}, the step loop in one process, {load['steps']} steps each (medians), whole prompts {load['repeats']}"
        f" times, KV cache {load['kv_cache_memory']}"
    )
    return "\n\n".join([origin(results, source, words), _stages(results)])


def charts(results: dict) -> dict[str, Chart]:
    """The cost of contexts, prompts by length."""
    made, contexts = {}, results["load"]["contexts"]
    if len(contexts) > 1:
        ticks = tuple((float(context), f"{context:,}") for context in contexts)
        lines = []
        for num_seqs in results["load"]["context_sequences"]:
            own = [run for run in _decodes(results) if run["num_seqs"] == num_seqs]
            label = count(num_seqs, "sequence")
            lines.append(Line(label, [(run["context"], run["step_ms"]) for run in own]))
            rest = [(run["context"], run["step_ms"] - run["stages_ms"]["attention"]) for run in own]
            lines.append(Line(f"{label}, without attention", rest, kin=label))
        title = "Time of a decoding step against the tokens of context"
        made["contexts"] = Chart(title, "tokens of context of each sequence", "ms per step", lines, ticks)
        rates = [(float(tokens), tokens / seconds) for tokens, seconds in _prompt_seconds(results)]
        title = "Prompt tokens per second against the length of the prompt"
        made["prompts"] = Chart(title, "tokens of the prompt", "tokens/s", [Line("one prompt", rates)], ticks)
    return made


def _decodes(results: dict) -> list[dict]:
    return [run for run in results["runs"] if run["phase"] == "decode"]


def _breakdowns(results: dict) -> list[dict]:
    """The runs whose stages are told: those at the first context, and the prefill."""
    sequences, context = results["load"]["sequences"], results["load"]["contexts"][0]
    decodes = [run for run in _decodes(results) if run["context"] == context and run["num_seqs"] in sequences]
    return decodes + [run for run in results["runs"] if run["phase"] == "prefill"]


def _name(run: dict) -> str:
    return f"{run['num_tokens']} prompt tokens" if run["phase"] == "prefill" else count(run["num_seqs"], "sequence")


def _stages(results: dict) -> str:
    runs = _breakdowns(results)
    rows = [[stage, *(_ms(run["stages_ms"][stage]) for run in runs)] for stage in runs[0]["stages_ms"]]
    rows.append(["**step**", *(f"**{run['step_ms']:.1f}**" for run in runs)])
    rows.append(["step, clocks running", *(f"{run['step_ms_with_clock']:.1f}" for run in runs)])
    context = results["load"]["contexts"][0]
    title = f"One step by stage, in ms ({context} tokens of context; the last column a whole prompt in one step)"
    return section(title, table(["stage", *map(_name, runs)], rows), _WITHIN)


def _contexts(results: dict) -> str:
    head = ["tokens of context", "sequences", "step, ms", "of it attention, ms", "per output token, ms", "against the shortest"]
    rows = []
    for num_seqs in results["load"]["context_sequences"]:
        own = [run for run in _decodes(results) if run["num_seqs"] == num_seqs]
        for run in own:
            cells = [run["step_ms"], run["stages_ms"]["attention"], run["step_ms"] / num_seqs]
            rows.append([f"{run['context']:,}", str(num_seqs), *map(_ms, cells), f"{run['step_ms'] / own[0]['step_ms']:.2f}"])
    return section("A decoding step as contexts grow", table(head, rows))


def _prompts(results: dict) -> str:
    rows = [[f"{tokens:,}", f"{seconds:.2f}", f"{tokens / seconds:.0f}"] for tokens, seconds in _prompt_seconds(results)]
    return section("Prompts by length", table(["tokens of the prompt", "until its first token, s", "prompt tokens/s"], rows))


def _prompt_seconds(results: dict) -> list[tuple[int, float]]:
    """(tokens, median of the seconds) of whole prompts."""
    prompts = results["prompts"]
    return [
        (tokens, known_median(one["seconds"] for one in prompts if one["prompt_tokens"] == tokens) or 0.0)
        for tokens in distinct(one["prompt_tokens"] for one in prompts)
    ]


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def render_executors(results: dict, source: str) -> str:
    """What the host's part of a step takes, where the engine's process computes and where a worker does."""
    load = results["load"]
    words = (
        f"steps that occupy a core for {load['step_ms']:g} ms and compute nothing, {load['steps']} of each form in each of"
        f" {count(load['rounds'], 'round')}"
    )
    words += "; what a step takes more than that, median of the rounds, smallest and largest"
    forms = list(results["runs"][0]["rounds_ms"][0])
    rows = [
        [f"{run['num_seqs']}", *(ratio([one[form] - load["step_ms"] for one in run["rounds_ms"]]) for form in forms)]
        for run in results["runs"]
    ]
    return "\n\n".join([origin(results, source, words), table(["sequences, ms", *forms], rows)])


def render_ranks(results: dict, source: str) -> str:
    """Steps of a model that several processes compute together, beside those of one process, and the memory of each."""
    load = results["load"]
    forms = list(results["megabytes"])
    rounds = count(load["rounds"], "round")
    words = f"{load['ranks']} ranks, contexts from {load['context']} tokens; medians of {rounds}, smallest and largest"
    rows = []
    for run in results["runs"]:
        what = (
            f"decode, {count(run['num_seqs'], 'sequence')}"
            if run["phase"] == "decode"
            else f"a prompt of {run['num_tokens']} tokens"
        )
        times = [sorted(one[form] for one in run["rounds_ms"]) for form in forms]
        rows.append([what, *(f"{median(some):.1f} ({some[0]:.1f} to {some[-1]:.1f})" for some in times)])
    rows.append(["memory besides files, MB", *(" + ".join(f"{one:.0f}" for one in results["megabytes"][form]) for form in forms)])
    return "\n\n".join([origin(results, source, words), table(["ms", *forms], rows)])
