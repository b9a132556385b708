"""The numbers as tables for a terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from triptych_cli.top.figures import LATENCIES, QUANTILES, Figures

_NONE = "-"
#: From this share of the KV cache on the number is yellow, and red.
_NEARLY_FULL, _FULL = 0.8, 0.95
#: Colours of states; others are between two.
_MODEL_STYLES = {"awake": "green", "asleep": "dim", "failed": "red"}


def screen(url: str, figures: Figures) -> RenderableType:
    """All tables."""
    load = figures.new.load
    parts: list[RenderableType] = [_head(url, figures), _requests(figures), _latencies(figures)]
    if figures.new.models:
        parts.append(models(figures.new.models))
    if load["frontends"]:
        parts += [_frontends(load["frontends"]), _engines(figures)]
        if load["encoders"]:
            parts.append(_encoders(figures))
    else:
        parts.append(Text("no frontend is connected", style="red"))
    return Group(*(line for part in parts for line in (part, Text(""))))


def models(of_machine: Sequence[Mapping[str, Any]]) -> Table:
    """The models of `triptych serve`, and their memory."""
    table = _table("model", "state", "memory", "of", "live", "idle", "source")
    for one in of_machine:
        table.add_row(
            one["name"] + (" (pinned)" if one["pinned"] else ""),
            Text(one["state"] + (f": {one['error']}" if one["error"] else ""), style=_MODEL_STYLES.get(one["state"], "yellow")),
            _bytes(one["resident_bytes"]),
            _bytes(one["memory_bytes"] or None),
            _count(one["num_live_requests"]),
            _NONE if one["num_live_requests"] else _duration(one["idle_s"]),
            one["source"],
        )
    return table


def away(url: str, reason: str) -> RenderableType:
    """What is shown while the gateway does not answer."""
    return Group(
        Text(f"no gateway answers at {url}", style="bold red"), Text(reason), Text("trying again; Ctrl-C ends", style="dim")
    )


def _head(url: str, figures: Figures) -> RenderableType:
    new = figures.new
    models = ", ".join(new.labels("triptych_model_info", "model_name")) or "no model"
    version = ", ".join(new.labels("triptych_build_info", "version"))
    up = _duration(time.time() - new.total("process_start_time_seconds"))
    window = f"last {figures.interval_s:.0f} s" if figures.interval_s else "since now"
    return Text.assemble((f"Triptych {version}", "bold"), f" serves {models}\n", (f"{url}, up {up}, {window}", "dim"))


def _requests(figures: Figures) -> Table:
    table = _table("requests/s", "in flight", "4xx/s", "failed/s", "prompt tok/s", "cached", "output tok/s")
    prompt, cached = figures.tokens_per_s("prefix_cache_queries"), figures.tokens_per_s("prefix_cache_hits")
    failed = figures.failed_per_s
    table.add_row(
        _number(figures.requests_per_s),
        str(figures.in_flight),
        _number(figures.refused_per_s),
        Text(_number(failed), style="red" if failed else ""),
        _number(prompt),
        _share(cached, prompt),
        _number(figures.tokens_per_s("num_generated_tokens")),
    )
    return table


def _latencies(figures: Figures) -> Table:
    table = _table("latency", *(f"p{100 * share:g}" for share in QUANTILES))
    for title, metric in LATENCIES.items():
        table.add_row(title, *map(_seconds, figures.quantiles(metric)))
    return table


def _frontends(frontends: list[dict[str, Any]]) -> Table:
    table = _table("frontend", "state", "calls")
    for one in frontends:
        table.add_row(_id(one), _state(one), _count(one["num_requests"]))
    return table


def _engines(figures: Figures) -> Table:
    table = _table("engine", "state", "run", "wait", "KV", "tok/s", "prefix", "preempt/s")
    for one in figures.new.load["engines"]:
        usage = None if not one["num_blocks"] else 1 - one["num_free_blocks"] / one["num_blocks"]
        hits = figures.rate_of(one, ("prefix_cache_hits",), "engines")
        table.add_row(
            _id(one),
            _state(one),
            _count(one["num_running"]),
            Text(_count(one["num_waiting"]), style="yellow" if one["num_waiting"] else ""),
            Text(_percent(usage), style=_fullness(usage)),
            _number(figures.rate_of(one, ("num_generated_tokens",), "engines")),
            _share(hits, figures.rate_of(one, ("prefix_cache_queries",), "engines")),
            _number(figures.rate_of(one, ("num_preemptions",), "engines")),
        )
    return table


def _encoders(figures: Figures) -> Table:
    table = _table("encoder", "state", "queue", "items/s", "hits", "cache", "of", "evict/s")
    hit = ("num_local_hits", "num_shared_hits", "num_joined")
    for one in figures.new.load["encoders"]:
        items = figures.rate_of(one, (*hit, "num_misses"), "encoders")
        table.add_row(
            _id(one),
            _state(one),
            Text(_count(one["queue_length"]), style="yellow" if one["queue_length"] else ""),
            _number(items),
            _share(figures.rate_of(one, hit, "encoders"), items),
            _bytes(one["used_bytes"]),
            _bytes(one["capacity_bytes"]),
            _number(figures.rate_of(one, ("num_evictions",), "encoders")),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold cyan", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        is_text = column in ("latency", "frontend", "engine", "encoder", "model", "state", "source")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True, min_width=8 if is_text else None)
    return table


def _id(service: Mapping[str, Any]) -> str:
    return service["id"][:8] or "away"


def _state(service: Mapping[str, Any]) -> Text:
    return Text(service["state"], style="green" if service["state"] == "serving" else "red")


def _fullness(usage: float | None) -> str:
    if usage is None or usage < _NEARLY_FULL:
        return ""
    return "red" if usage >= _FULL else "yellow"


def _count(value: int | None) -> str:
    return _NONE if value is None else str(value)


def _number(value: float | None) -> str:
    if value is None:
        return _NONE
    return "0" if not value else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return _NONE if value is None else f"{100 * value:.0f}%"


def _share(part: float | None, whole: float | None) -> str:
    return _NONE if part is None or not whole else _percent(part / whole)


def _seconds(value: float | None) -> str:
    if value is None:
        return _NONE
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"


def _bytes(value: int | None) -> str:
    if value is None:
        return _NONE
    number, units = float(value), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while number >= 1024 and unit != "TiB":
        number, unit = number / 1024, next(units)
    return f"{number:.0f} {unit}" if number >= 10 or unit == "B" else f"{number:.1f} {unit}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    shown = [f"{number} {unit}" for number, unit in parts if number]
    return " ".join(shown[:2]) or "0 s"
