"""Starts the services as processes on this machine, keeps them running, and stops all of them at the end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from triptych_cli.stack.process import ChildProcess, describe_exit

#: If an essential service dies this many times within this time, everything stops.
MAX_DEATHS = 3
DEATH_WINDOW_S = 60.0
#: A service that is not essential is restarted anyway. The pause before a restart grows by the first value with each further death,
#: up to the second value; in seconds.
RESTART_PAUSE_S, MAX_RESTART_PAUSE_S = 2.0, 15.0
#: Pause before the restart of a service that another one replaces, in seconds. That one computes anew what the dead one had
#: begun, and streams wait for it: a start needs whole cores for seconds.
TAKE_OVER_S = 1.0
#: Time for a service to end after SIGTERM, in addition to the time for its requests, in seconds.
STOP_GRACE_S = 15.0
#: Pause between two readiness probes, in seconds.
PROBE_INTERVAL_S = 0.1


@dataclass(frozen=True)
class ServiceSpec:
    """How to run a service, and how to check that it is ready."""

    name: str
    argv: Sequence[str]
    #: The whole environment of the process.
    env: Mapping[str, str]
    #: True once the service takes requests. May raise OSError, which means that it does not.
    is_ready: Callable[[], Awaitable[bool]]
    #: Whether the other services are useless without it. A service that is not essential may end before it is ready; it is then not
    #: restarted. It may also die often; it is then restarted after a pause.
    is_essential: bool = True
    #: Services of one group replace each other: none is essential while another one runs. Empty if there is no replacement.
    group: str = ""
    #: Time to end after SIGTERM, in seconds. Then SIGKILL follows.
    stop_grace_s: float = STOP_GRACE_S


class Reporter(Protocol):
    """Receives events. Its methods are called on the event loop and must not block."""

    def line(self, service: str, text: str) -> None: ...
    def ready(self, service: str, elapsed_s: float) -> None: ...
    def all_ready(self, elapsed_s: float) -> None: ...
    def died(self, service: str, how: str, last_lines: Sequence[str]) -> None:
        """A service died and is restarted."""
        ...

    def left_out(self, service: str, how: str, last_lines: Sequence[str]) -> None:
        """A service that is not essential ended before it was ready, and is not restarted."""
        ...

    def stopping(self, service: str) -> None: ...
    def killed(self, service: str, grace_s: float) -> None:
        """A service did not end within its grace period and was killed."""
        ...


class ServiceFailedError(Exception):
    """A service cannot be kept running.

    Args:
        why: one sentence that names the service.
        last_lines: the last lines of its output.
    """

    def __init__(self, why: str, last_lines: Sequence[str]) -> None:
        super().__init__(why)
        self.last_lines = list(last_lines)


@dataclass
class _Service:
    spec: ServiceSpec
    child: ChildProcess | None = None
    #: Keeps it running.
    task: asyncio.Task[None] | None = None
    has_been_ready: asyncio.Event = field(default_factory=asyncio.Event)
    #: The process that runs now was ready.
    is_ready: bool = False
    is_left_out: asyncio.Event = field(default_factory=asyncio.Event)
    #: Of one that was left out.
    last_lines: list[str] = field(default_factory=list)
    #: Monotonic times of the service's deaths within the window.
    deaths: deque[float] = field(default_factory=deque)


class Supervisor:
    """Runs services until it is told to stop.

    Args:
        specs: in start order. The services are stopped in reverse order.
    """

    def __init__(self, specs: Sequence[ServiceSpec], reporter: Reporter) -> None:
        self._services = [_Service(spec) for spec in specs]
        self._reporter = reporter
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        #: Has the error of a service that ends everything.
        self._failure: asyncio.Future[None]

    def stop(self) -> None:
        """Make `run` stop all services and return."""
        self._stop.set()

    def kill(self) -> None:
        """Same as `stop`, but kill the services at once."""
        self._stop.set()
        self._kill.set()

    async def run(self, main: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Start all services, keep them running, and stop them at the end.

        Args:
            main: runs beside the services, and may add and remove some. Its error ends everything.

        Raises:
            ServiceFailedError: an essential service ended before it was ready for the first time, or died too often.
        """
        start_s = time.monotonic()
        self._failure = asyncio.get_running_loop().create_future()
        stopped = asyncio.create_task(self._stop.wait())
        beside = []
        try:
            for service in self._services:
                await self._start(service)
            for service in self._services:
                self._keep(service)
            beside = [asyncio.create_task(main() if main is not None else self._report_all_ready(start_s))]
            beside[0].add_done_callback(self._note_failure)
            ends: list[asyncio.Future[Any]] = [stopped, self._failure]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not stopped.done():
                self._failure.result()
        finally:
            tasks = [stopped, *beside, *(service.task for service in self._services if service.task is not None)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for service in reversed(self._services):
                await self._end(service)

    async def add(self, specs: Sequence[ServiceSpec]) -> None:
        """Start further services, and keep them running. They are stopped after those that were there from the start."""
        services = [_Service(spec) for spec in specs]
        self._services[:0] = services
        for service in services:
            await self._start(service)
            self._keep(service)

    async def until_ready(self, names: Collection[str]) -> None:
        """Wait until these services were ready once.

        Raises:
            ServiceFailedError: one that is not essential ended before.
        """
        for service in [service for service in self._services if service.spec.name in names]:
            await _until_either(service.has_been_ready, service.is_left_out)
            if service.is_left_out.is_set():
                raise ServiceFailedError(f"{service.spec.name} ended before it was ready", service.last_lines)

    async def remove(self, names: Collection[str]) -> None:
        """Stop services, in reverse order."""
        for service in [service for service in reversed(self._services) if service.spec.name in names]:
            if service.task is not None:
                service.task.cancel()
                await asyncio.gather(service.task, return_exceptions=True)
            await self._end(service)
            self._services.remove(service)  # not earlier: if this is cancelled, `run` ends it

    def runs(self, name: str) -> bool:
        """Whether a service is kept running: it was added, and not left out."""
        return any(service.spec.name == name and not service.is_left_out.is_set() for service in self._services)

    def _keep(self, service: _Service) -> None:
        service.task = asyncio.create_task(self._keep_running(service))
        service.task.add_done_callback(self._note_failure)

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def _start(self, service: _Service) -> None:
        spec = service.spec
        service.child = await ChildProcess.start(spec.argv, spec.env, lambda text: self._reporter.line(spec.name, text))

    async def _keep_running(self, service: _Service) -> None:
        while True:
            assert service.child is not None  # noqa: S101
            child = service.child
            readiness = asyncio.create_task(self._await_ready(service))
            try:
                code = await child.wait()
            finally:
                readiness.cancel()
                await asyncio.gather(readiness, return_exceptions=True)
            service.child, service.is_ready = None, False
            if not service.has_been_ready.is_set() and self._can_do_without(service):
                self._reporter.left_out(service.spec.name, describe_exit(code), child.last_lines)
                service.last_lines = list(child.last_lines)
                service.is_left_out.set()
                await asyncio.Event().wait()
            await asyncio.sleep(self._judge(service, describe_exit(code), child.last_lines))
            await self._start(service)

    def _judge(self, service: _Service, how: str, last_lines: Sequence[str]) -> float:
        """Report a death. Returns the pause before the restart, in seconds.

        Raises:
            ServiceFailedError: an essential service ended before it was ready, or died too often.
        """
        name = service.spec.name
        if not service.has_been_ready.is_set():
            raise ServiceFailedError(f"{name} ended before it was ready ({how})", last_lines)
        now_s = time.monotonic()
        service.deaths.append(now_s)
        while service.deaths[0] < now_s - DEATH_WINDOW_S:
            service.deaths.popleft()
        num_too_many = len(service.deaths) - MAX_DEATHS + 1
        if num_too_many > 0 and not self._can_do_without(service):
            raise ServiceFailedError(f"{name} died {MAX_DEATHS} times within {DEATH_WINDOW_S:.0f} s (now: {how})", last_lines)
        self._reporter.died(name, how, last_lines)
        if num_too_many > 0:
            return min(num_too_many * RESTART_PAUSE_S, MAX_RESTART_PAUSE_S)
        return TAKE_OVER_S if any(other.is_ready for other in self._replacements(service)) else 0.0

    def _can_do_without(self, service: _Service) -> bool:
        """Whether the other services are useful without it."""
        return not service.spec.is_essential or bool(self._replacements(service))

    def _replacements(self, service: _Service) -> list[_Service]:
        """The other services of its group that are kept running."""
        group = service.spec.group
        others = [other for other in self._services if group and other.spec.group == group and other is not service]
        return [other for other in others if not other.is_left_out.is_set()]

    async def _await_ready(self, service: _Service) -> None:
        start_s = time.monotonic()
        while not await _is_ready(service.spec):  # noqa: ASYNC110 - another process has no event to wait for
            await asyncio.sleep(PROBE_INTERVAL_S)
        self._reporter.ready(service.spec.name, time.monotonic() - start_s)
        service.is_ready = True
        service.has_been_ready.set()

    async def _report_all_ready(self, start_s: float) -> None:
        for service in self._services:
            await _until_either(service.has_been_ready, service.is_left_out)
        self._reporter.all_ready(time.monotonic() - start_s)

    async def _end(self, service: _Service) -> None:
        child = service.child
        if child is None:
            return
        self._reporter.stopping(service.spec.name)
        child.terminate()
        exited, killed = asyncio.create_task(child.wait()), asyncio.create_task(self._kill.wait())
        await asyncio.wait([exited, killed], timeout=service.spec.stop_grace_s, return_when=asyncio.FIRST_COMPLETED)
        if not exited.done():
            if not killed.done():
                self._reporter.killed(service.spec.name, service.spec.stop_grace_s)
            child.kill()
        killed.cancel()
        await exited


async def _until_either(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


async def _is_ready(spec: ServiceSpec) -> bool:
    with contextlib.suppress(OSError):
        return await spec.is_ready()
    return False
