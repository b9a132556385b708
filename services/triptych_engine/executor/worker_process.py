"""A worker process as its engine sees it: calls, what it was asked to prepare, and how it ended."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from triptych_engine.executor.channel import Channel
from triptych_engine.executor.protocol import WorkerLostError
from triptych_engine.executor.worker import DUMP_SIGNAL, Answer, Resource, WorkerConfig

log = logging.getLogger(__name__)
#: How long a process gets to write the stacks of its threads, and to end when it is asked to, in seconds.
DUMP_S, _END_S = 1.0, 5.0


class Process(Protocol):
    """A process of `triptych_engine.executor.worker`, and the two channels to it."""

    pid: int
    steps: Channel
    preparations: Channel

    def wait(self, timeout_s: float | None = None) -> str:
        """How it has ended, in words. Raises subprocess.TimeoutExpired if it still runs."""
        ...

    def kill(self) -> None:
        """End it, in the middle of whatever it does."""
        ...

    def dump_stacks(self) -> None:
        """Let it write the stacks of its threads to the log, which takes up to DUMP_S."""
        ...


class LocalProcess:
    """Starts the process on this host. It ends with this process, at the latest.

    Args:
        config: what it begins with.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.steps, steps = Channel.pair()
        self.preparations, preparations = Channel.pair()
        with steps, preparations:
            descriptors = (steps.fileno(), preparations.fileno())
            shared = () if config.place.shared_memory < 0 else (config.place.shared_memory,)
            self._process = start_worker(*map(str, descriptors), descriptors=(*descriptors, *shared, *config.descriptors))
        self.pid = self._process.pid

    def wait(self, timeout_s: float | None = None) -> str:
        return f"{how_ended(self._process.wait(timeout_s))}; its output is above"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def dump_stacks(self) -> None:
        self._process.send_signal(DUMP_SIGNAL)


def start_worker(*arguments: str, descriptors: tuple[int, ...] = (), secret: bytes = b"") -> subprocess.Popen[bytes]:
    """Start a process of `triptych_engine.executor.worker` that inherits these descriptors, with a secret on its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-m", "triptych_engine.executor.worker", *arguments],
        stdin=subprocess.PIPE,
        pass_fds=descriptors,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:  # type: ignore[union-attr]
        stdin.write(secret)
    return process


def how_ended(status: int) -> str:
    """The exit status of a process in words."""
    return f"ended with exit status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"


class WorkerProcess:
    """Gives a process its configuration, and calls it.

    Args:
        config: what it begins with.
        process: was just started.
        on_prepared: called on another thread with each answer about preparations: number, digest, error.
        on_lost: called on another thread when the process has ended by itself, with the reason.
    """

    def __init__(
        self,
        config: WorkerConfig,
        process: Process,
        on_prepared: Callable[[int, str, Exception | None], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._process, self._on_prepared, self._on_lost = process, on_prepared, on_lost
        self._rank = f"rank {config.place.rank}, " if config.place.size > 1 else ""
        #: Why it has ended; empty while it runs.
        self.loss = ""
        #: Call -> answer that came before it was waited for: that of a step which is in flight when something else is asked.
        self._answers: dict[tuple[Any, ...], Answer] = {}
        self._steps, self._preparations, self.pid = process.steps, process.preparations, process.pid
        self._questions: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        with contextlib.suppress(OSError):  # it has ended already, which the next call notices
            self._steps.send(config)
        threading.Thread(target=self._receive, name="preparations", daemon=True).start()
        threading.Thread(target=self._ask, name="questions", daemon=True).start()

    def post(self, name: str, *arguments: Any, timeout_s: float | None = None) -> None:
        """Make a call without waiting for its answer. Raises WorkerLostError."""
        try:
            self._steps.send((name, *arguments), timeout_s)
        except TimeoutError:
            raise self._hangs(name, timeout_s) from None
        except OSError:
            raise self._lost() from None

    def answer(self, *call: Any, timeout_s: float | None = None) -> Answer:
        """Wait for the answer to a call that was posted, or that is answered by itself.

        Raises:
            WorkerLostError: the process has ended, or was ended because it did not answer in time.
        """
        while call not in self._answers:
            self.receive(call[0], timeout_s)
        return self._answers.pop(call)

    def error(self, *call: Any) -> BaseException | None:
        """What a call that was answered has raised; None if it has not."""
        return self._answers[call].error

    def has_answered(self, *call: Any) -> bool:
        """Whether `answer` need not wait."""
        return call in self._answers

    def receive(self, name: str, timeout_s: float | None = None) -> None:
        """Wait for the next answer, while that to a call of this name is waited for. Raises like `answer`."""
        try:
            answer: Answer = self._steps.receive(timeout_s)
        except TimeoutError:
            raise self._hangs(name, timeout_s) from None
        except EOFError:
            raise self._lost() from None
        self._answers[answer.call] = answer

    def fileno(self) -> int:
        """A file descriptor that is readable when `receive` need not wait."""
        return self._steps.fileno()

    def ask(self, number: int, what: Resource) -> None:
        """Ask to prepare something, without waiting. A process that has ended does not answer."""
        self._questions.put((number, *what))

    def end(self, why: str = "it was ended") -> None:
        """End the process, if it still runs, in the middle of whatever it does."""
        self.loss = self.loss or why
        self._questions.put(None)
        self._steps.close()
        self._preparations.close()
        self._wait()

    def _wait(self) -> str:
        """How a process has ended that is about to end. It is killed if it does not."""
        try:
            return self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _ask(self) -> None:
        while (question := self._questions.get()) is not None:
            with contextlib.suppress(OSError):  # it has ended
                self._preparations.send(question)

    def _receive(self) -> None:
        while True:
            try:
                answer = self._preparations.receive()
            except EOFError:
                break
            try:
                self._on_prepared(*answer)
            except Exception:
                log.exception("an answer of the worker could not be used")
        self._questions.put(None)
        if not self.loss:
            self._on_lost(str(self._lost()))

    @property
    def label(self) -> str:
        """What it is called in messages."""
        return f"the engine's worker ({self._rank}process {self.pid})"

    def _lost(self) -> WorkerLostError:
        """The error for a process that has closed its channels."""
        if not self.loss:
            self.loss = f"{self.label} {self._wait()}"
        return WorkerLostError(self.loss)

    def _hangs(self, name: str, timeout_s: float | None) -> WorkerLostError:
        """End a process that does not answer. Its stacks go to the log."""
        if not self.loss:
            log.error("%s hangs; the stacks of its threads follow", self.label)
            self.dump_stacks()
            time.sleep(DUMP_S)
            self.kill(f"{self.label} did not answer to {name!r} within {timeout_s:g} s")
        return WorkerLostError(self.loss)

    def dump_stacks(self) -> None:
        """Let it write the stacks of its threads to the log, which takes up to DUMP_S."""
        self._process.dump_stacks()

    def kill(self, why: str) -> None:
        """End the process at once. Who waits for its answer gets a WorkerLostError."""
        self.loss = self.loss or why
        self._process.kill()
