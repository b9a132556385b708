"""`triptych batch` as a process, against a real gateway in front of a frontend that answers at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from support.fakes.frontend import MODEL, FakeFrontend, Script, says
from support.grpc_server import serving
from support.waiting import until
from triptych.errors import InvalidRequestError, QueueFullError, ServiceUnavailableError
from triptych.v1 import generation_pb2
from triptych_cli.stack.ports import free_port
from triptych_cli.stack.probes import http_ready

_COMMAND = [sys.executable, "-m", "triptych_cli"]


@asynccontextmanager
async def ready(frontend: FakeFrontend) -> AsyncIterator[str]:
    """The address of a frontend that takes requests."""
    async with serving(frontend.register) as address:
        await frontend.health.set_ready(True)
        yield address


@asynccontextmanager
async def gateway(frontend_address: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A gateway that is ready, as a process."""
    process = await asyncio.create_subprocess_exec(
        *(
            *_COMMAND,
            "gateway",
            "--frontend-addresses",
            frontend_address,
            "--port",
            str(port),
            "--grpc-port",
            "0",
            "--log-level",
            "ERROR",
        ),
        *("--no-access-log", "--shutdown-grace-s", "0"),
    )
    is_ready = http_ready("127.0.0.1", port)
    try:
        async with asyncio.timeout(60):
            while not await _suppressed(is_ready()):  # noqa: ASYNC110 - another process has no event to wait for
                await asyncio.sleep(0.05)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _suppressed(ready: object) -> bool:
    try:
        return bool(await ready)  # type: ignore[misc]
    except OSError:
        return False


def write_input(path: Path, count: int) -> None:
    body = {"model": MODEL.name, "max_tokens": 3}
    kinds = [
        ("/v1/chat/completions", lambda text: {**body, "messages": [{"role": "user", "content": text}]}),
        ("/v1/completions", lambda text: {**body, "prompt": text}),
        ("/v1/embeddings", lambda text: {"model": MODEL.name, "input": text}),
    ]
    with path.open("w") as file:
        for number in range(count):
            url, make = kinds[number % 3]
            entry = {"custom_id": f"request-{number}", "method": "POST", "url": url, "body": make(f"text {number}")}
            file.write(json.dumps(entry) + "\n")


async def start(source: Path, output: Path, url: str, *options: str, before: Sequence[str] = ()) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(*before, *_COMMAND, "batch", str(source), "-o", str(output), "--url", url, *options), stderr=asyncio.subprocess.PIPE
    )


async def finish(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """The exit code, and what was shown."""
    _, shown = await process.communicate()
    assert process.returncode is not None
    return process.returncode, shown.decode()


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def entries(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.long
async def test_5000_requests_through_three_kills_are_answered_once_each(tmp_path: Path) -> None:
    source, output, port = tmp_path / "in.jsonl", tmp_path / "out.jsonl", free_port("127.0.0.1")
    write_input(source, 5000)
    frontend = FakeFrontend()
    async with asyncio.timeout(240), ready(frontend) as address, gateway(address, port):
        url = f"http://127.0.0.1:{port}"
        # A second of the four runs has a torn line to begin with, as a kill can leave one.
        for number, (how, code) in enumerate([(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 130)], start=1):
            process = await start(source, output, url, "--max-in-flight", "64")
            await until(lambda enough=1000 * number: num_lines(output) >= enough, timeout_s=60)  # type: ignore[misc]
            if number == 1:
                other = await start(source, output, url)
                assert await finish(other) == (1, f"triptych: another run writes to {output}\n")
            process.send_signal(how)
            ended, shown = await finish(process)
            assert ended == code
            if how != signal.SIGKILL:
                assert "of 5000 requests done; start the same command again to go on" in shown
            assert 1000 * number <= num_lines(output) < 5000
            if how == signal.SIGKILL:
                with output.open("ab") as file:
                    file.write(b'{"id": "batch_req_torn", "custom_id": "request-4')
        code, shown = await finish(await start(source, output, url))
    assert (code, "5000 requests are answered in" in shown) == (0, True)
    done = entries(output)
    assert Counter(entry["custom_id"] for entry in done) == {f"request-{number}": 1 for number in range(5000)}
    assert {entry["response"]["status_code"] for entry in done} == {200}
    # What was answered twice is what was in flight at a kill.
    assert len(frontend.requests) + len(frontend.pooling_requests) <= 5000 + 3 * 64
    bodies = {entry["custom_id"]: entry["response"]["body"] for entry in done}
    assert bodies["request-0"]["choices"][0]["message"]["content"] == "Hello"
    assert bodies["request-1"]["choices"][0]["text"] == "Hello"
    assert bodies["request-2"]["data"][0]["embedding"] == [0, 0.5]
    assert all(entry["response"]["request_id"] for entry in done)


async def test_errors_are_lines_and_passing_ones_are_tried_again(tmp_path: Path) -> None:
    source, output, port = tmp_path / "in.jsonl", tmp_path / "out.jsonl", free_port("127.0.0.1")
    write_input(source, 60)
    frontend = FakeFrontend()
    seen: Counter[str] = Counter()

    def play(request: generation_pb2.ChatRequest | generation_pb2.CompleteRequest) -> Script:
        text = request.messages[0].content[0].text if isinstance(request, generation_pb2.ChatRequest) else request.text
        seen[text] += 1
        if text == "text 3":
            return Script([], error=InvalidRequestError("text 3 is refused"))
        if seen[text] == 1 and text in ("text 6", "text 7"):
            passing = {"text 6": QueueFullError("full", retry_after_s=0.01), "text 7": ServiceUnavailableError("away")}
            return Script([], error=passing[text])
        return says("yes")

    frontend.script = play
    async with asyncio.timeout(60), ready(frontend) as address, gateway(address, port):
        code, shown = await finish(await start(source, output, f"http://127.0.0.1:{port}/v1/"))
    assert code == 1
    assert "1 requests failed" in shown
    statuses = {entry["custom_id"]: entry["response"]["status_code"] for entry in entries(output)}
    assert len(statuses) == 60
    assert [custom_id for custom_id, status in statuses.items() if status != 200] == ["request-3"]
    assert seen["text 3"] == 1
    assert seen["text 6"] == seen["text 7"] == 2


@pytest.mark.long
async def test_a_gateway_that_is_started_again_is_waited_for(tmp_path: Path) -> None:
    source, output, port = tmp_path / "in.jsonl", tmp_path / "out.jsonl", free_port("127.0.0.1")
    write_input(source, 300)
    frontend = FakeFrontend()
    gate = asyncio.Semaphore(150)
    frontend.script = Script(says("yes").choices, gate=gate)
    async with asyncio.timeout(120), ready(frontend) as address:
        async with gateway(address, port):
            process = await start(source, output, f"http://127.0.0.1:{port}", "--max-in-flight", "32")
            await until(lambda: gate.locked(), timeout_s=60)
        # It was killed with requests in flight.
        for _ in range(10_000):
            gate.release()
        async with gateway(address, port):
            code, _ = await finish(process)
    assert code == 0
    assert Counter(entry["custom_id"] for entry in entries(output)) == {f"request-{number}": 1 for number in range(300)}


async def test_under_nohup_a_batch_outlives_its_terminal(tmp_path: Path) -> None:
    source, output, port = tmp_path / "in.jsonl", tmp_path / "out.jsonl", free_port("127.0.0.1")
    write_input(source, 10)
    frontend = FakeFrontend()
    gate = asyncio.Semaphore(1)
    frontend.script = Script(says("yes").choices, gate=gate)
    async with asyncio.timeout(60), ready(frontend) as address, gateway(address, port):
        process = await start(source, output, f"http://127.0.0.1:{port}", before=("nohup",))
        await until(lambda: gate.locked(), timeout_s=30)
        process.send_signal(signal.SIGHUP)
        for _ in range(100):
            gate.release()
        assert (await finish(process))[0] == 0
    assert num_lines(output) == 10


async def test_a_model_that_is_not_served_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    source, output, port = tmp_path / "in.jsonl", tmp_path / "out.jsonl", free_port("127.0.0.1")
    entry = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "gpt-9", "prompt": "x"}}
    source.write_text(json.dumps(entry))
    frontend = FakeFrontend()
    async with asyncio.timeout(60), ready(frontend) as address, gateway(address, port):
        code, shown = await finish(await start(source, output, f"http://127.0.0.1:{port}"))
    assert (code, output.read_bytes()) == (1, b"")
    assert f"line 1: model 'gpt-9' is not served; served are: {MODEL.name}" in shown
    assert not frontend.requests


@pytest.mark.long
@pytest.mark.model
async def test_services_of_its_own(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    entry = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "all-minilm-l6-v2", "input": "x"}}
    source.write_text(json.dumps(entry))
    # A gateway with a key gets it from the environment, and so does the batch.
    environment = {**os.environ, "TRIPTYCH_GATEWAY_API_KEY": "secret"}
    command = [*_COMMAND, "batch", str(source), "-o", str(output), "--model", "all-minilm-l6-v2"]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    code, shown = await finish(process)
    assert code == 0, shown
    (line,) = entries(output)
    assert len(line["response"]["body"]["data"][0]["embedding"]) == 384


@pytest.mark.model
async def test_an_interrupted_start_leaves_nothing(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_input(source, 1)
    command = [*_COMMAND, "batch", str(source), "-o", str(output), "--model", "all-minilm-l6-v2"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    batch = psutil.Process(process.pid)
    await until(lambda: bool(batch.children()), timeout_s=30)
    services = batch.children()
    process.send_signal(signal.SIGTERM)
    code, shown = await finish(process)
    assert code == 130
    assert "interrupted with 0 of 1 requests done; start the same command again to go on" in shown
    # A signal within the start of the process leaves it to the process itself to end.
    _, alive = psutil.wait_procs(services, 20)
    assert not alive
