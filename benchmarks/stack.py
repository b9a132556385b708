"""`triptych serve` under measurement: how it is started, how long that takes, how much memory its services hold."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil
from child import Child
from load import Target
from pydantic_settings import CliApp
from triptych_common.model.dtype import checkpoint_dtype
from triptych_common.model.store import WEIGHT_PATTERNS, resolve_model
from triptych_engine.settings import EngineSettings

#: What the services may hold, in bytes; the engine's comes on top of its weights and its KV budget.
GATEWAY_LIMIT, FRONTEND_LIMIT, ENGINE_OVERHEAD_LIMIT = 150_000_000, 250_000_000, 700_000_000
START_TIMEOUT_S = 300.0
FIRST_ANSWER_TIMEOUT_S = 60.0
_SAMPLE_INTERVAL_S = 0.2


@dataclass(frozen=True)
class ColdStart:
    """Seconds from starting the command, with the model's files on the disk."""

    ready_s: float
    first_answer_s: float


@dataclass(frozen=True)
class Stack:
    """A running stack."""

    target: Target
    cold_start: ColdStart
    services: dict[str, psutil.Process]

    @property
    def engine_args(self) -> list[str]:
        """The flags that the engine was started with."""
        argv = self.services["engine"].cmdline()
        return argv[argv.index("triptych_engine") + 1 :]

    def memory_limits(self) -> dict[str, int]:
        """What each service may hold, in bytes."""
        import torch  # seconds, and after the measurements
        from triptych_engine.runner.model.precision import compute_dtype

        settings = CliApp.run(EngineSettings, cli_args=self.engine_args)
        path = resolve_model(settings.model, WEIGHT_PATTERNS)
        checkpoint: torch.dtype = getattr(torch, checkpoint_dtype(path))
        auto = compute_dtype(checkpoint, torch.device("cpu"))
        dtype = auto if settings.dtype == "auto" else getattr(torch, settings.dtype)
        # As they are computed with: a checkpoint may be widened.
        weights = sum(file.stat().st_size for file in path.glob("*.safetensors")) * dtype.itemsize // checkpoint.itemsize
        engine = weights + settings.kv_cache_memory + ENGINE_OVERHEAD_LIMIT
        return {"gateway": GATEWAY_LIMIT, "frontend": FRONTEND_LIMIT, "engine": engine}

    def resident(self) -> dict[str, int]:
        """Resident memory of each service now, in bytes."""
        return {name: process.memory_info().rss for name, process in self.services.items()}


@dataclass
class MemoryPeak:
    """The largest resident memory of each service that was seen, in bytes."""

    resident: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def watching(self, stack: Stack) -> Iterator[None]:
        """Look every 0.2 s for the time of the block."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(_SAMPLE_INTERVAL_S):
                for name, size in stack.resident().items():
                    self.resident[name] = max(size, self.resident.get(name, 0))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


#: `triptych serve`, from this clone.
SERVE = ("-c", "from triptych_cli.main import app; app()", "serve")


@contextmanager
def running_stack(model: str, serve_args: Sequence[str], program: Sequence[str] = SERVE, name: str = "Triptych") -> Iterator[Stack]:
    """All services on free ports for the time of the block.

    Args:
        program: arguments of Python, before the model.
        name: what to call it.
    """
    ports = ["--port", "0", "--frontend-port", "0", "--encoder-port", "0", "--engine-port", "0"]
    command = [sys.executable, *program, model, *ports, *serve_args]
    # A wide terminal: the line that is waited for must not be wrapped.
    with Child(command, {**os.environ, "COLUMNS": "200"}) as child:
        announced = child.wait_for(r"Triptych serves (\S+) at (http://\S+)", START_TIMEOUT_S)
        ready_s = time.perf_counter() - child.started_s
        target = Target(name, url=announced[2], model=announced[1])
        _ask(target)
        cold_start = ColdStart(ready_s, time.perf_counter() - child.started_s)
        yield Stack(target, cold_start, _services(child.pid))


def _ask(target: Target) -> None:
    """One chat request, to its last word."""
    question = [{"role": "user", "content": "What is the capital of France?"}]
    body = json.dumps({"model": target.model, "messages": question, "temperature": 0, "max_tokens": 16}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{target.url}/v1/chat/completions", body, headers)  # noqa: S310 - our own address
    with urllib.request.urlopen(request, timeout=FIRST_ANSWER_TIMEOUT_S) as response:  # noqa: S310
        assert json.load(response)["choices"][0]["message"]["content"]


def _services(supervisor_pid: int) -> dict[str, psutil.Process]:
    """The processes of the services, by the supervisor's children."""
    children = psutil.Process(supervisor_pid).children()
    names = [next((arg for arg in child.cmdline() if arg.startswith("triptych_")), child.name()) for child in children]
    return {name.removeprefix("triptych_"): child for name, child in zip(names, children, strict=True)}
