"""`triptych serve` under measurement: how it is started, how long that takes, how much memory its services hold."""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from triptych_cli.load.requests import Target
from triptych_cli.stack.ports import free_port

from benchmarks.harness.child import Child
from benchmarks.harness.machine import REPOSITORY, cpu_s
from benchmarks.harness.sitting import without_directories

HOST = "127.0.0.1"
START_TIMEOUT_S = 300.0
FIRST_ANSWER_TIMEOUT_S = 60.0
_SAMPLE_INTERVAL_S = 0.2
#: For the environment of engines. Answers of the loads here are greedy and go on behind their ends, so they repeat themselves as no
#: real ones do, and prompt lookup would guess most of their tokens. benchmarks.speculation measures it.
DRAFTS_OFF = {"TRIPTYCH_ENGINE_PROMPT_LOOKUP": "false"}
#: `triptych serve`, from the checkout that comes first in PYTHONPATH.
_SERVE = ("-c", "from triptych_cli.main import app; app()", "serve")


@dataclass(frozen=True)
class Stack:
    """Running services.

    Attributes:
        ports: of the flags in `running_stack`'s `port_flags`.
        grpc_address: host:port that `triptych serve` tells people for gRPC.
        cold_start: `ready_s` and `first_answer_s`, seconds from starting the command, with the model's files on the disk.
    """

    target: Target
    command: str
    services: dict[str, psutil.Process]
    ports: dict[str, int] = field(default_factory=dict)
    grpc_address: str = ""
    cold_start: dict[str, float] = field(default_factory=dict)

    @property
    def engine_args(self) -> list[str]:
        """The flags that the engine was started with."""
        argv = self.services["engine"].cmdline()
        return argv[argv.index("triptych_engine") + 1 :]

    def resident(self) -> dict[str, int]:
        """Resident memory of each service now, in bytes."""
        return {name: process.memory_info().rss for name, process in self.services.items()}

    @contextmanager
    def watching(self) -> Iterator[dict[str, dict]]:
        """What its services need in the time of the block, known at its end.

        `peak` is the largest resident memory of each that was seen, every 0.2 s, in bytes; `cpu_s` its processor time.
        """
        stop, peak = threading.Event(), self.resident()
        before_s = {name: cpu_s(service) for name, service in self.services.items()}
        seen: dict[str, dict] = {}

        def watch() -> None:
            while not stop.wait(_SAMPLE_INTERVAL_S):
                peak.update({name: max(size, peak[name]) for name, size in self.resident().items()})

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            stop.set()
            thread.join()
        seen["peak"] = peak
        seen["cpu_s"] = {name: cpu_s(service) - before_s[name] for name, service in self.services.items()}


def checkout_env(checkout: Path = REPOSITORY) -> dict[str, str]:
    """This process's environment, with Triptych's packages taken from a checkout, and the benchmarks from this one."""
    folders = [*(checkout.resolve() / name for name in ("services", "cli", "gateway", "clients/python")), REPOSITORY]
    # A wide terminal: the line that is waited for must not be wrapped.
    drafts = DRAFTS_OFF if (checkout / "services/triptych_engine/scheduling/speculation").exists() else {}
    return {**drafts, **os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "COLUMNS": "200"}


@contextmanager
def running_stack(
    model: str,
    serve_args: Sequence[str],
    port_flags: Sequence[str] = (),
    *,
    name: str = "Triptych",
    checkout: Path = REPOSITORY,
) -> Iterator[Stack]:
    """All services on free ports for the time of the block.

    Args:
        port_flags: flags of `triptych serve` that get a free port each.
        name: what to call it.
        checkout: where its code lies.
    """
    ports = {flag: free_port(HOST) for flag in port_flags}
    parts = ["", "frontend-", "encoder-", "engine-"]
    if (checkout / "gateway" / "triptych_gateway" / "rpc").is_dir():  # the gateways of earlier commits have no gRPC port
        parts.append("grpc-")
    argv = [model, *(word for part in parts for word in (f"--{part}port", "0"))]
    argv += [*(word for flag, port in ports.items() for word in (flag, str(port))), *serve_args]
    with Child([sys.executable, *_SERVE, *argv], checkout_env(checkout)) as child:
        announced = child.wait_for(r"Triptych serves (\S+) at (http://\S+)", START_TIMEOUT_S)
        ready_s = time.perf_counter() - child.started_s
        target = Target(name, url=announced[2], model=announced[1])
        grpc_address = child.wait_for(r"gRPC (\S+:\d+)", START_TIMEOUT_S)[1]
        ask(target)
        cold_start = {"ready_s": ready_s, "first_answer_s": time.perf_counter() - child.started_s}
        command = without_directories(shlex.join(["triptych", "serve", *argv]))
        yield Stack(target, command, _services(child.pid), ports, grpc_address, cold_start)


def ask(target: Target) -> None:
    """One chat request, to its last word. Raises OSError, urllib's errors among them."""
    question = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"model": target.model, "messages": question, "temperature": 0, "max_tokens": 16}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{target.url}/v1/chat/completions", json.dumps(body).encode(), headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=FIRST_ANSWER_TIMEOUT_S) as response:  # noqa: S310
        assert json.load(response)["choices"][0]["message"]["content"]


def _services(supervisor_pid: int) -> dict[str, psutil.Process]:
    """The processes of the services, by the supervisor's children; the second of a kind is `engine-2`."""
    services: dict[str, psutil.Process] = {}
    for child in psutil.Process(supervisor_pid).children():
        name = next((arg.removeprefix("triptych_") for arg in child.cmdline() if arg.startswith("triptych_")), child.name())
        count = sum(other.partition("-")[0] == name for other in services)
        services[f"{name}-{count + 1}" if count else name] = child
    return services
