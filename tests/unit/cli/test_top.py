"""`triptych top` shows what the gateway serves."""

from __future__ import annotations

import asyncio
import io
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from support.fakes.frontend import FakeFrontend, fails, says
from support.fakes.gateway import CHAT, gateway_server
from triptych.errors import InternalError
from triptych.v1 import common_pb2, encoder_pb2, engine_pb2, generation_pb2
from triptych_cli.errors import CommandError
from triptych_cli.main import app
from triptych_cli.top import command
from triptych_cli.top.figures import LATENCIES, Figures, History, quantile
from triptych_cli.top.reading import GatewayAwayError, GatewayReader, Reading
from triptych_cli.top.screen import models, screen
from typer.testing import CliRunner

SERVING = common_pb2.SERVER_STATE_SERVING
URL = "http://gateway"


def load_of(frontend: FakeFrontend, engine: engine_pb2.Load, encoder: encoder_pb2.GetStatsResponse) -> None:
    """Make a frontend tell of one engine and one encoder."""
    frontend.load = generation_pb2.GetLoadResponse(instance=frontend.instance, num_live_requests=2)
    frontend.load.engines.add(instance=common_pb2.Instance(id="engine-1", state=SERVING), load=engine)
    frontend.load.encoders.add(instance=common_pb2.Instance(id="encoder-1", state=SERVING), stats=encoder)


def reader_of(place: tuple[str, int], key: str | None = None) -> GatewayReader:
    return GatewayReader("http://{}:{}".format(*place), key)


def shown(figures: Figures, width: int = 100) -> list[list[str]]:
    """The words of each line."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(screen(URL, figures))
    return [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


async def readings() -> tuple[Reading, Reading]:
    """Of a real gateway, ten seconds apart as far as the readings know: five chats, one of which fails, and one bad request."""
    frontend = FakeFrontend()
    frontend.script = says("a", "b", "c")
    engine = engine_pb2.Load(num_running=3, num_waiting=5, num_blocks=100, num_free_blocks=25, block_size=16)
    encoder = encoder_pb2.GetStatsResponse(
        queue_length=4, used_bytes=3 << 20, capacity_bytes=1 << 30, num_local_hits=10, num_misses=10
    )
    load_of(frontend, engine, encoder)
    async with gateway_server(frontend) as place, httpx.AsyncClient(base_url="http://{}:{}".format(*place)) as client:
        reader = reader_of(place)
        first = await asyncio.to_thread(reader.read)
        for number in range(5):
            frontend.script = fails(InternalError("broken"), after=1) if number == 4 else says("a", "b", "c")
            await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
        await client.post("/v1/chat/completions", json=CHAT | {"n": 0})
        await client.get("/ready")
        engine.MergeFrom(
            engine_pb2.Load(num_generated_tokens=400, prefix_cache_queries=1000, prefix_cache_hits=250, num_preemptions=2)
        )
        encoder.MergeFrom(encoder_pb2.GetStatsResponse(num_local_hits=17, num_misses=13, num_evictions=5))
        load_of(frontend, engine, encoder)
        second = await asyncio.to_thread(reader.read)
        return first, replace(second, at_s=first.at_s + 10)


async def test_what_is_shown_is_what_is_served() -> None:
    lines = shown(Figures(*await readings()))
    assert lines[0][-2:] == ["serves", "fake/model"]
    assert ["0.60", "0", "0.10", "0.10", "100", "25%", "40"] in lines
    assert ["frontend", "state", "calls"] in lines
    assert ["fake", "serving", "2"] in lines
    assert ["engine-1", "serving", "3", "5", "75%", "40", "25%", "0.20"] in lines
    assert ["encoder-", "serving", "4", "1.00", "70%", "3.0", "MiB", "1.0", "GiB", "0.50"] in lines


async def test_latencies_are_those_of_the_gateways_histograms() -> None:
    old, new = await readings()
    figures = Figures(old, new)
    for title, metric in LATENCIES.items():
        counts, sums = (new.total(f"{metric}_{part}") - old.total(f"{metric}_{part}") for part in ("count", "sum"))
        assert counts > 0
        p50, p95, p99 = figures.quantiles(metric)
        assert p50 is not None
        assert p95 is not None
        assert p99 is not None
        assert 0 < p50 <= p95 <= p99
        # A quantile lies in the bucket of its values: at most two and a half times too large, as the buckets are.
        assert p50 < max(5 * sums / counts, 0.001), title
        assert ["-"] * 3 not in [line[-3:] for line in shown(figures) if line[: len(title.split())] == title.split()]


def test_quantiles_are_interpolated() -> None:
    inf = float("inf")
    assert quantile({1.0: 0, 2.0: 10, inf: 10}, 0.5) == 1.5
    assert quantile({1.0: 5, 2.0: 10, inf: 10}, 0.25) == 0.5
    assert quantile({1.0: 5, 2.0: 5, inf: 10}, 0.95) == 2.0, "above the last bound nothing is known"
    assert quantile({1.0: 0, inf: 0}, 0.5) is None
    assert quantile({}, 0.5) is None


def reading(at_s: float, num_requests: float, start_s: float = 1.0) -> Reading:
    samples: dict[str, Any] = {
        "process_start_time_seconds": [({}, start_s)],
        "triptych_gateway_requests_total": [({"route": "/v1/models", "status": "200"}, num_requests)],
    }
    return Reading(samples, {"frontends": [], "engines": [], "encoders": []}, at_s)


def test_rates_are_over_the_last_seconds() -> None:
    history = History(window_s=10)
    assert history.add(reading(0, 0)).requests_per_s is None
    figures = [history.add(reading(second, second * second)) for second in range(1, 21)]
    assert figures[0].requests_per_s == 1
    assert (figures[-1].interval_s, figures[-1].requests_per_s) == (10, (20 * 20 - 10 * 10) / 10)


def test_a_gateway_that_was_restarted_begins_again() -> None:
    history = History(window_s=10)
    history.add(reading(0, 1000))
    assert history.add(reading(1, 3, start_s=2)).requests_per_s is None
    assert history.add(reading(2, 5, start_s=2)).requests_per_s == 2


async def test_nothing_is_cut_off_in_80_columns() -> None:
    text = "\n".join(" ".join(line) for line in shown(Figures(*await readings()), width=80))
    assert "…" not in text


async def test_once_prints_the_tables() -> None:
    frontend = FakeFrontend()
    load_of(frontend, engine_pb2.Load(num_running=7, num_blocks=10, num_free_blocks=10), encoder_pb2.GetStatsResponse())
    async with gateway_server(frontend) as place:
        done = await asyncio.to_thread(CliRunner().invoke, app, ["top", "--once", "--url", "http://{}:{}".format(*place)])
    assert done.exit_code == 0
    assert ["engine-1", "serving", "7", "0", "0%"] in [line.split()[:5] for line in done.output.splitlines()]
    assert "\x1b" not in done.output


async def test_without_a_frontend_it_says_so() -> None:
    """/load then answers 503."""
    figures = Figures(reading(0, 0), reading(1, 0))
    assert ["no", "frontend", "is", "connected"] in shown(figures)


async def test_a_key_is_needed_where_the_gateway_has_one(tmp_path: Path) -> None:
    async with gateway_server(FakeFrontend(), api_key="secret") as place:
        with pytest.raises(CommandError, match=r"/metrics needs an API key .* --api-key-file"):
            await asyncio.to_thread(reader_of(place).read)
        assert (await asyncio.to_thread(reader_of(place, "secret").read)).load["frontends"]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--url", "127.0.0.1:8000"], 2, "--url must begin with http:// or https://; given: 127.0.0.1:8000"),
        (["--api-key-file", "/no/such/file"], 2, "cannot read /no/such/file: No such file or directory"),
        (
            ["--once", "--url", "http://127.0.0.1:1"],
            1,
            "no gateway answers at http://127.0.0.1:1: Connection refused; start one with `triptych serve`, or give --url",
        ),
    ],
)
def test_it_says_what_is_wrong(args: list[str], code: int, message: str) -> None:
    done = CliRunner().invoke(app, ["top", *args])
    assert done.exit_code == code
    assert message in done.output


def test_what_is_no_gateway_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()

        async def ask() -> None:
            call = asyncio.create_task(asyncio.to_thread(reader_of(place).read))
            peer = await asyncio.to_thread(lambda: listener.accept()[0])
            peer.sendall(b"\x00\x00\x12\x04\x00 this is no HTTP\r\n")
            peer.close()
            await call

        with pytest.raises(CommandError, match="does not speak HTTP"):
            asyncio.run(ask())


class ComesAndGoes:
    """A reader whose gateway is away at first, and again after one reading."""

    url = URL

    def __init__(self) -> None:
        self.num_reads = 0

    def read(self) -> Reading:
        self.num_reads += 1
        if self.num_reads != 2:
            raise GatewayAwayError("Connection refused")
        return reading(time.monotonic(), 1)


def test_it_goes_on_while_the_gateway_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ComesAndGoes()

    def sleep(seconds: float) -> None:
        if reader.num_reads == 3:
            raise KeyboardInterrupt  # the user's Ctrl-C

    monkeypatch.setattr(command.time, "sleep", sleep)
    monkeypatch.setattr(command, "GatewayReader", lambda url, key: reader)
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, height=24)
    command.top(URL, api_key_file=None, once=False, console=console)
    text = output.getvalue()
    assert text.count("no gateway answers at http://gateway") == 2
    assert text.count("no frontend is connected") == 1
    assert (text.count("\x1b[?1049h"), text.count("\x1b[?1049l")) == (1, 1), "the alternate screen is left"
    assert text.endswith("\x1b[?25h\x1b[?1049l"), "with a cursor"


def test_the_models_of_a_machine_are_listed() -> None:
    known = {"source": "org/a", "memory_bytes": 2 << 30, "resident_bytes": 1 << 30, "error": "", "idle_s": 90.0}
    of_machine = [
        {"name": "a", "state": "awake", "pinned": True, "num_live_requests": 2, **known},
        {"name": "b", "state": "asleep", "pinned": False, "num_live_requests": 0, **known},
        {"name": "c", "state": "failed", "pinned": False, "num_live_requests": 0, **known, "error": "no file", "memory_bytes": 0},
    ]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(models(of_machine))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines[1:] == [
        ["a", "(pinned)", "awake", "1.0", "GiB", "2.0", "GiB", "2", "-", "org/a"],
        ["b", "asleep", "1.0", "GiB", "2.0", "GiB", "0", "1", "min", "30", "s", "org/a"],
        ["c", "failed:", "no", "file", "1.0", "GiB", "-", "0", "1", "min", "30", "s", "org/a"],
    ]


async def test_models_need_a_manager() -> None:
    async with gateway_server(FakeFrontend()) as (host, port):
        with pytest.raises(CommandError, match="has no model manager"):
            await asyncio.to_thread(command.ps, f"http://{host}:{port}", api_key_file=None)
