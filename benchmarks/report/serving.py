"""Tables and charts of what benchmarks.serving and benchmarks.streams measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.report import tables
from benchmarks.report.plots import Chart, Line
from benchmarks.report.tables import TRIPTYCH, distinct, known_median, median, origin, ratio, section, table

ENGINE_ALONE = "engine alone"
#: Figures -> how tables name them; in ratios, TTFT and gaps are better when they are less.
_FIGURES = {
    "output_tokens_per_s": "output tokens/s",
    "ttft_p50_ms": "TTFT p50, ms",
    "ttft_p99_ms": "TTFT p99, ms",
    "gap_p50_ms": "gap p50, ms",
    "gap_p99_ms": "gap p99, ms",
}
#: What of a token's cost grows with the number of streams; the engine's is its model.
_SERVICES = ("gateway", "frontend")


def ratios(runs: Sequence[dict], other: str, figure: str, concurrency: int) -> list[float]:
    """Triptych's figure over another target's, one ratio per pair of runs that followed each other."""
    own = [run for run in runs if run["concurrency"] == concurrency]
    return tables.ratios(own, (TRIPTYCH, lambda run: run["figures"][figure]), (other, lambda run: run["figures"][figure]))


def render(results: dict, source: str) -> str:
    """All tables, ratios first; `source` is where the results are kept, as the document names it."""
    runs = results["runs"]
    return "\n\n".join([render_ratios(results, source), _absolute(runs), *_costs(runs), *_start_and_memory(results)])


def render_ratios(results: dict, source: str) -> str:
    """Triptych beside each other target."""
    runs, load = results["runs"], results["load"]
    pictures = f", {load['pictures']} pictures of {load['picture_size']} pixels each" if load.get("pictures") else ""
    words = (
        f"{load['model']}, prompts of {load['prompt_words']} words{pictures}, {load['max_tokens']} output tokens,"
        f" {load['requests_per_stream']} requests per stream, {load['repeats']} rounds"
    )
    parts = [origin(results, source, words)]
    for name in _targets(runs):
        figures = ["output_tokens_per_s"] if name == ENGINE_ALONE else list(_FIGURES)
        rows = [[str(c), *(ratio(ratios(runs, name, figure, c)) for figure in figures)] for c in _concurrencies(runs)]
        if name != TRIPTYCH and "fake" not in name:
            head = ["streams", *(_FIGURES[figure].removesuffix(", ms") for figure in figures)]
            parts.append(section(f"Triptych against {name}, as ratios", table(head, rows)))
    return "\n\n".join(parts)


def _of(runs: Sequence[dict], target: str, concurrency: int) -> list[dict]:
    return [run for run in runs if (run["target"], run["concurrency"]) == (target, concurrency)]


def _absolute(runs: Sequence[dict]) -> str:
    rows = []
    for concurrency in _concurrencies(runs):
        for target in _targets(runs):
            figures = [run["figures"] for run in _of(runs, target, concurrency)]
            if any(each["ttft_p50_ms"] is not None for each in figures):
                medians = [median([each[name] for each in figures]) for name in _FIGURES]
                rows.append([f"{concurrency:,}", target, *medians])
    num_failed, num_ok = (sum(run["figures"][name] for run in runs) for name in ("num_failed", "num_ok"))
    failed = f"{num_failed:,} of {num_failed + num_ok:,} requests failed."
    return section("Figures (medians of the rounds)", table(["streams", "target", *_FIGURES.values()], rows), failed)


def _costs(runs: Sequence[dict]) -> list[str]:
    """Processor time per token, where it was taken: of the services in order; then tokens, and the messages that brought them."""
    measured = [run for run in runs if run.get("cpu_us_per_token")]
    head, columns = ["streams"], [[f"{concurrency:,}" for concurrency in _concurrencies(measured)]]
    for target in _targets(measured):
        own = [_of(measured, target, concurrency) for concurrency in _concurrencies(measured)]
        services = distinct(name for some in own for run in some for name in run["cpu_us_per_token"])
        figures: dict[str, Callable[[dict], float | None]] = {
            "tokens/s": lambda run: run["figures"]["output_tokens_per_s"],
            "messages per token": lambda run: run["figures"].get("messages_per_token"),
        }
        known = {name: figure for name, figure in figures.items() if any(figure(run) is not None for some in own for run in some)}
        head.append("; ".join([f"{target}: {', '.join(services)}", *known]))
        cells = []
        for some in own:
            times = ", ".join(median((run["cpu_us_per_token"].get(name) for run in some), 0) for name in services)
            cells.append("; ".join([times, *(median(map(figure, some), 2) for figure in known.values())]))
        columns.append(cells)
    rows = list(zip(*columns, strict=True))
    return [section("Processor time per output token, in microseconds", table(head, rows))] if rows else []


def _start_and_memory(results: dict) -> list[str]:
    """Of each server that the sitting started."""
    parts = []
    for server in results.get("servers", ()):
        if "idle" in server:
            peaks = [run["peak"] for run in results["runs"] if run["target"] == server["name"] and "peak" in run]
            peak = server.get("peak") or {name: max(each.get(name, 0) for each in peaks) for name in server["idle"]}
            rows = [[name, *(f"{size / 1e6:.0f}" for size in (idle, peak[name]))] for name, idle in server["idle"].items()]
            start = server["cold_start"]
            words = (
                f"From the command to the address: {start['ready_s']:.1f} s; to the end of the first chat answer:"
                f" {start['first_answer_s']:.1f} s. Resident memory:"
            )
            parts.append(section(f"Start and memory, {server['name']}", words, table(["service", "idle, MB", "peak, MB"], rows)))
    return parts


def charts(results: dict) -> dict[str, Chart]:
    """Throughput and TTFT against the number of streams, or for benchmarks.streams the processor time."""
    runs = results["runs"]
    ticks = tuple((float(concurrency), f"{concurrency:,}") for concurrency in _concurrencies(runs))

    def lines(figure: Callable[[dict], float | None], label: str, kin: str = "") -> list[Line]:
        made = []
        for target in _targets(runs):
            points = [(float(c), known_median(figure(run) for run in _of(runs, target, c))) for c in _concurrencies(runs)]
            known = [(streams, value) for streams, value in points if value is not None]
            if known:
                made.append(Line(label.format(target), known, kin.format(target) or None))
        return made

    if results.get("kind") == "streams":
        cpu = [
            line
            for name in _SERVICES
            for line in lines(lambda run, name=name: run["cpu_us_per_token"].get(name), f"{name}, {{}}")  # type: ignore[misc]
        ]
        title = "Processor time of gateway and frontend per output token"
        return {"cpu": Chart(title, "concurrent streams", "microseconds of CPU", cpu, ticks, log_y=True)}
    throughput = lines(lambda run: run["figures"]["output_tokens_per_s"], "{}")
    ttft = lines(lambda run: run["figures"]["ttft_p50_ms"], "{} p50") + lines(
        lambda run: run["figures"]["ttft_p99_ms"], "{} p99", "{} p50"
    )
    title = "Output tokens per second against concurrent streams"
    return {
        "throughput": Chart(title, "concurrent streams", "output tokens/s", throughput, ticks),
        "ttft": Chart("Time to first token against concurrent streams", "concurrent streams", "TTFT, ms", ttft, ticks, log_y=True),
    }


def _targets(runs: Sequence[dict]) -> list[str]:
    return distinct(run["target"] for run in runs)


def _concurrencies(runs: Sequence[dict]) -> list[int]:
    return distinct(run["concurrency"] for run in runs)
