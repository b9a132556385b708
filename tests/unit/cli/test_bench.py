"""`triptych bench` against servers that answer well and badly."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import ssl
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web
from rich.console import Console
from support.fakes.frontend import MODEL, FakeFrontend, says
from support.fakes.gateway import gateway_server
from support.terminal import interruptible_children
from support.waiting import until
from triptych.v1 import common_pb2
from triptych_cli.bench.command import BenchOptions, bench
from triptych_cli.errors import CommandError

OPTIONS = BenchOptions(
    url="",
    model=None,
    concurrency=None,
    rate=None,
    num_prompts=4,
    input_len=50,
    output_len=3,
    completions=False,
    ignore_eos=True,
    goodput=(),
    json_file=None,
    plot=None,
    api_key_file=None,
    cacert=None,
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Answers each prompt with as many words as are asked for. A prompt has two tokens per word, and three of the template."""

    def __init__(self, line_end: str = "\n\n", with_usage: bool = True, fails_from: int | None = None) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.live = self.most_live = 0
        #: Answers to later requests wait for it.
        self.gate = asyncio.Event()
        self.num_free = 1_000_000
        self._line_end, self._with_usage, self._fails_from = line_end, with_usage, fails_from

    async def models(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers)
        return web.json_response({"data": [{"id": "served"}]})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        number = len(self.bodies)
        self.headers.append(request.headers)
        if self._fails_from is not None and len(self.bodies) >= self._fails_from:
            return web.json_response({"error": {"message": "too busy"}}, status=429)
        is_chat = "messages" in body
        prompt = body["messages"][0]["content"] if is_chat else body["prompt"]
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        try:
            await asyncio.sleep(0.01)
            if number > self.num_free:
                await self.gate.wait()
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            for _ in range(body["max_tokens"]):
                await self._send(response, {"choices": [{"delta": {"content": "w"}} if is_chat else {"text": "w"}]})
            if self._with_usage:
                usage = {"prompt_tokens": 2 * len(prompt.split()) + 3, "completion_tokens": body["max_tokens"]}
                await self._send(response, {"choices": [], "usage": usage})
            await response.write(f"data: [DONE]{self._line_end}".encode())
            return response
        finally:
            self.live -= 1

    async def _send(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        await response.write(f"data: {json.dumps(event)}{self._line_end}".encode())


@asynccontextmanager
async def serving(server: Server, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Its URL."""
    app = web.Application()
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/{route:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def measured(server: Server, tls: ssl.SSLContext | None = None, **options: Any) -> tuple[int, str]:
    """Exit code and output."""
    console = Console(file=io.StringIO(), width=100, highlight=False)
    async with serving(server, tls) as url:
        code = await asyncio.to_thread(bench, replace(OPTIONS, url=url, **options), console)
    return code, console.file.getvalue()  # type: ignore[attr-defined]


async def test_levels_of_concurrency(tmp_path: Path) -> None:
    server, file, plot = Server(), tmp_path / "a.json", tmp_path / "a.svg"
    code, text = await measured(server, concurrency="1,2", goodput=["ttft:60000"], json_file=file, plot=plot)
    assert code == 0
    first, second = [line.split() for line in text.splitlines()[1:3]]
    assert (first[0], second[0], first[-1]) == ("1", "2", "0")
    assert "8 answers of 3 tokens to prompts of 51" in text  # 24 words
    assert server.most_live == 2
    measured_bodies = server.bodies[2:]
    assert len(measured_bodies) == 8
    assert {(body["model"], body["max_tokens"], body["ignore_eos"], body["stream"]) for body in measured_bodies} == {
        ("served", 3, True, True)
    }
    starts = [body["messages"][0]["content"].split()[0] for body in server.bodies]
    assert len(set(starts)) == len(starts)
    result = json.loads(file.read_text())
    assert (result["model"], result["input_len"], len(result["levels"])) == ("served", 50, 2)
    level = result["levels"][1]
    assert (level["concurrency"], level["num_ok"], level["mean_output_len"]) == (2, 4, 3)
    assert level["goodput"] == level["requests_per_s"] > 0
    assert level["ttft"]["p50"] <= level["e2el"]["p50"]
    root = ElementTree.parse(plot).getroot()  # noqa: S314 - our own file
    assert len(root.findall(".//{*}polyline")) == 5


async def test_a_rate_does_not_wait_for_answers() -> None:
    server = Server()
    server.num_free = 2
    asking = asyncio.create_task(measured(server, rate="200", num_prompts=10))
    await until(lambda: server.live == 10)
    server.gate.set()
    code, text = await asking
    assert code == 0
    assert text.splitlines()[0].startswith("sent/s")


async def test_completions_of_a_server_that_tells_no_usage_and_ends_lines_otherwise() -> None:
    server = Server(line_end="\r\n\r\n", with_usage=False)
    code, text = await measured(server, concurrency="1", completions=True, ignore_eos=False, model="mine")
    assert code == 0
    assert "4 answers of 3 tokens" in text
    assert all("ignore_eos" not in body and body["model"] == "mine" for body in server.bodies)
    # The length of a word is guessed.
    assert len(server.bodies[-1]["prompt"].split()) == round(50 / 1.3)


async def test_requests_that_fail_are_told(tmp_path: Path) -> None:
    code, text = await measured(Server(fails_from=5), concurrency="1")
    assert code == 1
    assert re.search(r"^1: 2 failed: .*status 429: .*too busy", text, re.MULTILINE)
    with pytest.raises(CommandError, match=r"does not answer: .*status 429: .*too busy"):
        await measured(Server(fails_from=1), concurrency="1")


@pytest.mark.parametrize(
    "event",
    [
        5,
        {"choices": [None]},
        {"choices": [{"text": "a"}], "usage": [1]},
        {"choices": [{"text": "a"}], "usage": {"prompt_tokens": "x"}},
    ],
)
async def test_events_that_are_not_openais_fail_their_request(event: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    original = server._send

    async def send(response: web.StreamResponse, given: dict[str, Any]) -> None:
        await original(response, event if len(server.bodies) > 4 else given)

    monkeypatch.setattr(server, "_send", send)
    code, text = await measured(server, concurrency="1")
    assert code == 1
    assert re.search(r"^1: 2 failed: RequestFailedError: (an event is not as|usage without numbers)", text, re.MULTILINE)


async def test_a_server_that_does_not_speak_http() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(CommandError, match="no server answers at http"):
            await asyncio.to_thread(bench, replace(OPTIONS, url=url))


async def test_a_key_and_a_certificate(tmp_path: Path) -> None:
    authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "key").write_text("sesame\n")
    server = Server()
    code, _ = await measured(server, context, concurrency="1", api_key_file=tmp_path / "key", cacert=tmp_path / "ca.crt")
    assert code == 0
    assert {headers["authorization"] for headers in server.headers} == {"Bearer sesame"}
    with pytest.raises(CommandError, match="no server answers at https"):
        await measured(server, context, concurrency="1")


async def test_triptychs_own_gateway() -> None:
    frontend = FakeFrontend()
    frontend.script = says("a", "b", "c", usage=common_pb2.Usage(prompt_tokens=9, completion_tokens=3))
    console = Console(file=io.StringIO(), width=100, highlight=False)
    async with gateway_server(frontend) as (host, port):
        options = replace(OPTIONS, url=f"http://{host}:{port}/v1/", concurrency="2")
        assert await asyncio.to_thread(bench, options, console) == 0
    assert {request.model for request in frontend.requests} == {MODEL.name}
    assert frontend.requests[-1].options.sampling.ignore_eos


@pytest.mark.parametrize(("num_free", "loads"), [(2, []), (8, ["1"]), (11, ["1", "3*"])])
async def test_an_interrupt_prints_what_was_measured(num_free: int, loads: list[str]) -> None:
    """Two requests find the length, six are of the first level. The others wait for ever."""
    server = Server()
    server.num_free = num_free
    async with serving(server) as url:
        command = ["bench", url, "--concurrency", "1,3", "--num-prompts", "6", "--output-len", "2"]
        with interruptible_children():
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "triptych_cli", *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        num_live = 1 if num_free == 2 else 3
        await until(lambda: len(server.bodies) == num_free + num_live and server.live == num_live, 60)
        process.send_signal(signal.SIGINT)
        output, errors = await process.communicate()
    assert process.returncode == 130, errors
    assert b"Traceback" not in errors
    assert b"interrupted" in errors
    lines = output.decode().splitlines()
    assert [line.split()[0] for line in lines[1 : len(loads) + 1]] == loads
    assert ("* not whole" in lines) == ("3*" in loads)


WRONG = [
    ({"url": "127.0.0.1:8000"}, "must begin with http:// or https://"),
    ({"concurrency": "1,0"}, "--concurrency is a list of positive numbers"),
    ({"concurrency": "two"}, "--concurrency is a list of positive numbers"),
    ({"rate": "nan"}, "--rate is a list of positive numbers"),
    ({"concurrency": "1", "rate": "1"}, "two kinds of load"),
    ({"goodput": ["ttft=5"]}, "--goodput is NAME:MILLISECONDS"),
    ({"goodput": ["speed:5"]}, "--goodput is NAME:MILLISECONDS"),
    ({"url": "https://127.0.0.1:1", "cacert": Path("/nowhere")}, "cannot read /nowhere as a certificate"),
    ({}, "no server answers at http://127.0.0.1:1"),
    ({"url": "http://127.0.0.1:one"}, "no server answers at http://127.0.0.1:one"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_wrong_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        bench(replace(OPTIONS, **({"url": "http://127.0.0.1:1"} | options)))
