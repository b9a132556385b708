"""Services as processes of their own, without a supervisor: several of each kind, each restarted by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from triptych_cli.stack.ports import free_port
from triptych_cli.stack.probes import grpc_ready, http_ready

from support.waiting import until

#: Longest wait for a service that starts on a busy machine, in seconds.
_START_S = 120.0


class ServiceProcess:
    """One service. It has the same ports after each start.

    Args:
        kind: gateway, frontend, encoder or engine.
        args: further flags.
        log: its output is appended to this file.
        env: further environment variables.
    """

    def __init__(self, kind: str, args: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self.port = free_port("127.0.0.1")
        self.log = log
        self._env = {**os.environ, **(env or {})}
        self._argv = [sys.executable, "-m", f"triptych_{kind}", "--port", str(self.port), *args]
        if kind == "gateway":
            self._argv += ["--grpc-port", str(free_port("127.0.0.1"))]
            self.is_ready: Callable[[], Awaitable[bool]] = http_ready("127.0.0.1", self.port)
        else:
            control_port = free_port("127.0.0.1")
            self._argv += ["--control-port", str(control_port)]
            self.is_ready = grpc_ready(f"127.0.0.1:{control_port}")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._argv, stdout=log, stderr=log, env=self._env)

    async def until_ready(self) -> None:
        """Wait until it takes work. Fails with its log if it ends."""
        assert self._process is not None
        async with asyncio.timeout(_START_S):
            while not await self._is_ready():
                assert self._process.poll() is None, f"the {self.kind} ended:\n{self.log.read_text()[-3000:]}"
                await asyncio.sleep(0.05)

    async def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return await self.is_ready()
        return False

    async def stop(self, timeout_s: float) -> int:
        """Send SIGTERM. Returns the exit code."""
        process = self._process
        assert process is not None
        process.terminate()
        await until(lambda: process.poll() is not None, timeout_s)
        return process.returncode

    def kill(self) -> None:
        """End it now, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Suite:
    """Services of all kinds, told of each other.

    Args:
        counts: kind -> number of services.
        args: kind -> further flags.
        directory: for the logs.
    """

    def __init__(self, counts: Mapping[str, int], args: Mapping[str, Sequence[str]], directory: Path) -> None:
        self.services: dict[str, list[ServiceProcess]] = {}
        self._told: dict[str, list[str]] = {}
        for kind in ("encoder", "engine", "frontend", "gateway"):
            flags = [*self._addresses(kind), *args.get(kind, ())]
            self.services[kind] = [
                ServiceProcess(kind, flags, directory / f"{kind}-{number}.log") for number in range(1, counts[kind] + 1)
            ]

    def _addresses(self, kind: str) -> list[str]:
        told = {"engine": ["encoder"], "frontend": ["engine", "encoder"], "gateway": ["frontend"]}.get(kind, [])
        flags = []
        for other in told:
            flags += [f"--{other}-addresses", ",".join(service.address for service in self.services[other])]
        return flags

    @property
    def all(self) -> list[ServiceProcess]:
        return [service for services in self.services.values() for service in services]


@contextlib.asynccontextmanager
async def running_suite(counts: Mapping[str, int], args: Mapping[str, Sequence[str]], directory: Path) -> AsyncIterator[Suite]:
    """A suite whose services are all ready."""
    suite = Suite(counts, args, directory)
    try:
        for service in suite.all:
            service.start()
        for service in suite.all:
            await service.until_ready()
        yield suite
    finally:
        for service in reversed(suite.all):
            service.kill()
