"""What benchmarks start and stop, and what they write about it."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest
from aiohttp import web
from triptych_cli.load.client import put_load
from triptych_cli.load.requests import Prompts, completion
from triptych_common.model.store import TEXT_MODEL

from benchmarks.__main__ import PARTS, commands
from benchmarks.engine.fake import MIN_INTERVAL_S, TOKENS_PER_S, interval_s, running_without_model
from benchmarks.errors import BenchmarkError
from benchmarks.harness.child import Child
from benchmarks.harness.sitting import RESULTS, new_parser, without_directories
from benchmarks.harness.targets import TRIPTYCH, add_target_arguments, check_target_arguments, running_servers
from benchmarks.report.hold import hold


def test_a_child_s_lines_are_waited_for_one_after_the_other() -> None:
    program = "import sys; print('one 1'); print('two 2', flush=True); print('got', sys.stdin.readline())"
    with Child([sys.executable, "-c", program], os.environ) as child:
        assert child.wait_for(r"(one) (\d)", 30)[2] == "1"
        assert child.wait_for(r"two (\d)", 30)[1] == "2"
        child.send("a line")
        assert child.wait_for("got (.*)", 30)[1] == "a line"
        with pytest.raises(BenchmarkError, match="it ended; its last lines:\none 1\ntwo 2"):
            child.wait_for("three", 30)


def test_a_child_ends_with_its_block_and_silence_is_an_error() -> None:
    with Child([sys.executable, "-c", "import time; time.sleep(60)"], os.environ) as child:
        process = psutil.Process(child.pid)
        with pytest.raises(BenchmarkError, match="nothing for 0 s"):
            child.wait_for("never", 0.1)
    assert not process.is_running()


def test_where_files_lie_is_not_told() -> None:
    preload, url = "LD_PRELOAD=/usr/lib/x/libtcmalloc.so:/opt/v/libiomp5.so", "http://127.0.0.1:9/v1/models"
    command = f"{preload} /opt/v/bin/vllm serve '/home/me/smollm2/' --url {url} ../a/b"
    told = f"LD_PRELOAD=libtcmalloc.so:libiomp5.so vllm serve 'smollm2/' --url {url} ../a/b"
    assert without_directories(command) == told


def parsed(*argv: str) -> argparse.Namespace:
    parser = new_parser(None)
    add_target_arguments(parser, "model")
    args = parser.parse_args(argv)
    check_target_arguments(parser, args)
    return args


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--peer", "http://x"], "--peer needs --peer-command"),
        (["--peer-only"], "--peer-only needs --peer"),
        (["--peer", "http://x", "--peer-command", "x", "--peer-name", TRIPTYCH], "is the name of another target"),
        (["--baseline", "/nowhere"], "is no checkout"),
    ],
)
def test_targets_that_make_no_sense_are_refused(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*argv)
    assert message in capsys.readouterr().err


async def test_a_peer_is_kept_with_its_version_and_its_command() -> None:
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "smollm2"}]})

    async def version(request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_get("/version", version)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        options = ["--peer-only", "--peer", url, "--peer-name", "vLLM", "--peer-command", "/opt/bin/vllm serve smollm2"]

        def enter(*more: str) -> dict:
            with running_servers(parsed(*options, *more)) as servers:
                return {name: server.about for name, server in servers.items()}

        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, enter, "--peer-model", "smollm2") == {
            "vLLM": {"name": "vLLM", "version": "0.32.0", "command": "vllm serve smollm2"}
        }
        with pytest.raises(BenchmarkError, match="serves smollm2, not other"):
            await loop.run_in_executor(None, enter, "--peer-model", "other")
    finally:
        await runner.cleanup()


def test_results_are_kept_also_of_a_sitting_in_which_requests_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = json.loads((RESULTS / "2026-11-22-steps-zen5.json").read_text())
    monkeypatch.setattr("benchmarks.report.hold.RESULTS", tmp_path / "results")
    monkeypatch.setattr("signal.signal", lambda *_: None)  # pytest's own handlers stay
    with pytest.raises(SystemExit, match="3 requests failed"):
        hold(lambda: results, lambda results: 3, "again")
    assert json.loads((tmp_path / "results" / "2026-11-22-again.json").read_text()) == results
    assert "| **step** |" in capsys.readouterr().out


def test_all_parts_are_run_unless_some_are_named() -> None:
    assert [command[0] for command in commands([])] == list(PARTS)
    assert commands(["steps", "streams"]) == [["steps"], ["streams"]]


def test_a_part_takes_options_of_its_own() -> None:
    assert commands(["encoder", "--model", "llava"]) == [["encoder", "--model", "llava"]]
    assert commands(["serving", "--concurrency", "1"]) == [["serving", "--concurrency", "1"]]


@pytest.mark.parametrize("arguments", [["unknown"], ["--name"], ["steps", "streams", "--name"]])
def test_options_that_belong_to_no_part_are_refused(arguments: list[str]) -> None:
    with pytest.raises(ValueError, match="cannot make sense of"):
        commands(arguments)


def test_streams_share_the_pace_as_far_as_it_is_sensible() -> None:
    assert interval_s(1200) == 1200 / TOKENS_PER_S
    assert interval_s(1) == MIN_INTERVAL_S
    assert 0 < interval_s(0) < MIN_INTERVAL_S


@pytest.mark.model
async def test_gateway_and_frontend_stream_from_a_fake_engine() -> None:
    with running_without_model(TEXT_MODEL) as stack:
        requests = [completion(prompt, 40) for prompt in Prompts(5).take(6)]
        with stack.watching() as seen:
            started_s = time.perf_counter()
            figures = await put_load(stack.target, requests, concurrency=3, timeout_s=60)
            elapsed_s = time.perf_counter() - started_s
    assert (figures.num_ok, figures.num_output_tokens, figures.failures) == (6, 240, {})
    # Two rounds of 40 tokens, one per interval.
    assert elapsed_s >= 80 * MIN_INTERVAL_S
    assert set(seen["peak"]) == set(seen["cpu_s"]) == {"engine", "frontend", "gateway"}
    assert all(size > 10**6 for size in seen["peak"].values())
    assert seen["cpu_s"]["gateway"] > 0
