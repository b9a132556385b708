"""`triptych serve` in a separate process, on free ports, and clients for tests."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import psutil
from triptych.v1 import common_pb2, control_pb2, control_pb2_grpc, engine_pb2, engine_pb2_grpc
from triptych_common.model.store import resolve_model
from triptych_common.rpc.channels import CHANNEL_OPTIONS
from triptych_common.settings import DEFAULT_MODEL

QUESTION = {
    "model": DEFAULT_MODEL,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 32,
}
#: Longest wait for anything that a healthy stack does immediately, in seconds.
SOON_S = 10.0
#: Longest time for a stack to stop, in seconds: more than the supervisor gives its services.
_STOP_S = 60.0


class Serving:
    """A running `triptych serve`, and its output so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        #: Hours of a busy stack are tens of megabytes: one text would be copied, and searched, for every line.
        self._lines: list[str] = []
        self._has_ended = False
        self._grown = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):  # who started the process has closed its output after its end
            for line in self.process.stdout:
                with self._grown:
                    self._lines.append(line)
                    self._grown.notify_all()
        with self._grown:
            self._has_ended = True
            self._grown.notify_all()

    @property
    def log(self) -> str:
        """All of it."""
        return "".join(self._lines)

    def wait_for(self, pattern: str, times: int = 1, timeout_s: float = 240) -> re.Match[str]:
        """Wait until lines have the pattern `times` times in all, but not longer than the process lives."""
        found: list[re.Match[str]] = []
        num_searched = 0

        def is_found() -> bool:
            nonlocal num_searched
            for line in self._lines[num_searched:]:
                found.extend(re.finditer(pattern, line))
            num_searched = len(self._lines)
            return len(found) >= times

        with self._grown:
            self._grown.wait_for(lambda: is_found() or self._has_ended, timeout_s)
        assert len(found) >= times, f"no {pattern!r} in the end of:\n{self.log[-100_000:]}"
        return found[times - 1]

    def wait_until_started(self) -> str:
        """Wait until the stack answers. Returns the address of the gateway."""
        return self.wait_for(r"Triptych serves .+ at (https?://\S+)")[1]

    def wait_until_ready(self, url: str, timeout_s: float = 240) -> None:
        """Wait until the gateway at this address is ready."""
        _wait_for_status(url, 200, timeout_s)

    def wait_until_unready(self, url: str, timeout_s: float = SOON_S) -> None:
        """Wait until the gateway at this address is not ready."""
        _wait_for_status(url, 503, timeout_s)

    def ask(self, url: str) -> str:
        """The answer to the question, over REST."""
        response = httpx.post(f"{url}/v1/chat/completions", json=QUESTION, timeout=120, trust_env=False)
        return str(response.raise_for_status().json()["choices"][0]["message"]["content"])

    def services(self) -> dict[str, psutil.Process]:
        """The processes of the services, by name."""
        children = psutil.Process(self.process.pid).children()
        return {next(arg for arg in child.cmdline() if arg.startswith("triptych_"))[9:]: child for child in children}


class Stack:
    """A running stack, with clients of its REST interface, of its services and of their control ports."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.url = serving.wait_until_started()
        self.http = httpx.Client(base_url=self.url, timeout=120, trust_env=False)
        arguments = {name: service.cmdline() for name, service in serving.services().items()}
        #: Ports of each gRPC service: its own and its control port.
        self.ports = {
            name: (_port(arguments[name], "--port"), _port(arguments[name], "--control-port"))
            for name in _GRPC_SERVICES
            if name in arguments
        }
        self._channels = {port: grpc.insecure_channel(f"127.0.0.1:{port}", CHANNEL_OPTIONS) for port in _flat(self.ports)}
        self.engine: Any = engine_pb2_grpc.EngineServiceStub(self.channel("engine"))

    def close(self) -> None:
        self.http.close()
        for channel in self._channels.values():
            channel.close()

    def channel(self, service: str) -> grpc.Channel:
        """A connection to a service's own port."""
        return self._channels[self.ports[service][0]]

    def control_channel(self, service: str) -> grpc.Channel:
        """A connection to a service's control port."""
        return self._channels[self.ports[service][1]]

    def control(self, service: str) -> Any:
        """A stub of a service's ControlService."""
        return control_pb2_grpc.ControlServiceStub(self.control_channel(service))

    def num_live_requests(self, service: str) -> int:
        """Number of requests that a service works on now."""
        info: control_pb2.GetServerInfoResponse = self.control(service).GetServerInfo(control_pb2.GetServerInfoRequest())
        return info.num_live_requests

    def wait_for_load(self, num_running: int, num_waiting: int = 0, timeout_s: float = SOON_S) -> common_pb2.Load:
        """Follow the engine's load until these numbers of requests run and wait."""
        watch = self.engine.WatchLoad(engine_pb2.WatchLoadRequest(interval_s=0.01), timeout=timeout_s)
        with contextlib.ExitStack() as stack:
            stack.callback(watch.cancel)
            for response in watch:
                if (response.load.num_running, response.load.num_waiting) == (num_running, num_waiting):
                    return response.load
        raise AssertionError("the engine ended the watch")

    def wait_until_empty(self, timeout_s: float = SOON_S) -> None:
        """Wait until no request runs. Check that all services agree and all KV blocks are free."""
        load = self.wait_for_load(0, timeout_s=timeout_s)
        assert load.num_free_blocks == load.num_blocks > 0
        assert self.num_live_requests("engine") == 0
        assert self.num_live_requests("frontend") == 0


#: A stack for a text-only model has no encoder.
_GRPC_SERVICES = ("frontend", "encoder", "engine")


def _wait_for_status(url: str, status: int, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    with httpx.Client(base_url=url, trust_env=False) as http:
        while (response := http.get("/ready")).status_code != status:
            assert time.monotonic() < deadline_s, f"/ready answers {response.status_code}, not {status}: {response.text}"
            time.sleep(0.02)


def _port(arguments: list[str], flag: str) -> int:
    return int(arguments[arguments.index(flag) + 1])


def _flat(ports: dict[str, tuple[int, int]]) -> list[int]:
    return [port for pair in ports.values() for port in pair]


@contextlib.contextmanager
def serving(*args: str) -> Iterator[Serving]:
    """Run `triptych serve` on free ports. Raises StartupError if the default model was not fetched.

    Args:
        args: flags; the first one may be a model.
    """
    resolve_model(args[0] if args and not args[0].startswith("-") else DEFAULT_MODEL)
    ports = ["--port", "0", "--grpc-port", "0", "--frontend-port", "0", "--encoder-port", "0", "--engine-port", "0"]
    command = [sys.executable, "-c", "from triptych_cli.main import app; app()", "serve", *args, *ports]
    environment = {**os.environ, "COLUMNS": "200"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as process:
        try:
            yield Serving(process)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            finally:
                process.kill()


@contextlib.contextmanager
def running_stack(*args: str) -> Iterator[Stack]:
    """A stack that answers, for the duration of the block."""
    with serving(*args) as server:
        stack = Stack(server)
        try:
            yield stack
        finally:
            stack.close()
