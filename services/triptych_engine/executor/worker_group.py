"""The workers of one engine, of which each has a share of the model, as one."""

from __future__ import annotations

import logging
import math
import os
import select
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from triptych_engine.executor.nodes import Nodes, RemoteProcess
from triptych_engine.executor.protocol import WorkerLostError
from triptych_engine.executor.worker import Resource, WorkerConfig
from triptych_engine.executor.worker_process import DUMP_S, LocalProcess, Process, WorkerProcess
from triptych_engine.runner.place import Place

log = logging.getLogger(__name__)
#: How long the others may take when one has answered with an error. They may wait for it in the middle of a step.
_GRACE_S = 5.0
#: Calls whose error is of use when only some ranks have it: the model cannot be served.
_MAY_FAIL = ("load", "restore")


class WorkerGroup:
    """Starts a process for each rank. All get the same calls. When one is lost, all are: they wait for each other in every step.

    Args:
        configs: of each rank.
        on_prepared: called on another thread with each answer about preparations: number, digest, error.
        on_lost: called on another thread when one has ended by itself.
        nodes: other hosts that compute an equal part of the ranks each; None if all are on this one.

    Raises:
        WorkerLostError: one could not be started.
    """

    def __init__(
        self,
        configs: Sequence[WorkerConfig],
        on_prepared: Callable[[int, str, Exception | None], None],
        on_lost: Callable[[], None],
        nodes: Nodes | None = None,
    ) -> None:
        #: Why they have ended; empty while they run.
        self.loss = ""
        self._on_prepared, self._on_lost, self._lock = on_prepared, on_lost, threading.Lock()
        self._prepared: dict[int, list[tuple[str, Exception | None]]] = defaultdict(list)
        self._folder, self._workers = "", list[WorkerProcess]()
        self._start(configs, nodes)

    def _start(self, configs: Sequence[WorkerConfig], nodes: Nodes | None) -> None:
        shared_memory, rendezvous = -1, ""
        if nodes is not None:
            nodes.wait()
            rendezvous = nodes.rendezvous()
        elif len(configs) > 1:
            self._folder = tempfile.mkdtemp(prefix="triptych-ranks-")
            rendezvous = str(Path(self._folder, "rendezvous"))
            if hasattr(os, "memfd_create"):
                shared_memory = os.memfd_create("triptych-ranks")
        place = Place(0, len(configs), rendezvous, shared_memory, 1 if nodes is None else nodes.num_nodes)
        remote: list[RemoteProcess] = []
        try:
            if nodes is not None:
                for rank in range(place.local_size, place.size):  # one by one: if one fails, those before it are ended
                    remote.append(nodes.start(rank // place.local_size))
            for rank, config in enumerate(configs[: place.local_size]):
                config = replace(config, place=replace(place, rank=rank))
                self._add(config, LocalProcess(config))
            for rank, process in enumerate(remote, place.local_size):
                process.connect()
                there = replace(place, rank=rank, model_path=process.model_path)
                self._add(replace(configs[rank], place=there), process)
        except BaseException:
            for process in remote:
                process.kill()
            self.end()
            raise
        finally:
            if shared_memory >= 0:
                os.close(shared_memory)  # the ranks have it

    def _add(self, config: WorkerConfig, process: Process) -> None:
        self._workers.append(WorkerProcess(config, process, self._one_prepared, self._one_lost))

    @property
    def pids(self) -> list[int]:
        """The process id of each rank."""
        return [worker.pid for worker in self._workers]

    def post(self, name: str, *arguments: Any, timeout_s: float | None = None) -> None:
        """Make a call without waiting for its answer. Raises WorkerLostError."""
        try:
            for worker in self._workers:
                worker.post(name, *arguments, timeout_s=timeout_s)
        except WorkerLostError as error:
            raise self.lost(str(error)) from None

    def call(self, name: str, *arguments: Any, timeout_s: float | None = None) -> list[Any]:
        """Make a call and wait for what it returns, of each rank.

        Raises:
            WorkerLostError: one has ended, or was ended because it did not answer in time.
            Exception: what the call raised.
        """
        self.post(name, *arguments, timeout_s=timeout_s)
        return self.answers(name, *arguments, timeout_s=timeout_s)

    def answers(self, *call: Any, timeout_s: float | None = None) -> list[Any]:
        """Wait for the answers to a call that was posted, or that is answered by itself. Raises like `call`."""
        try:
            if len(self._workers) > 1:
                self._receive(call, timeout_s)
            answers = [worker.answer(*call, timeout_s=timeout_s) for worker in self._workers]
        except WorkerLostError as error:
            raise self.lost(str(error)) from None
        failed = [answer.error for answer in answers if answer.error is not None]
        if failed and len(failed) == len(answers):
            raise failed[0]
        if failed:  # what they hold is no longer the same
            lost = self.lost(f"not all ranks of the engine failed in {call[0]!r}: {failed[0]}")
            raise failed[0] if call[0] in _MAY_FAIL else lost
        return [answer.value for answer in answers]

    def ask(self, number: int, what: Resource) -> None:
        """Ask to prepare something, without waiting. Processes that have ended do not answer."""
        for worker in self._workers:
            worker.ask(number, what)

    def end(self) -> None:
        """End the processes, if they still run, in the middle of whatever they do."""
        self.loss = self.loss or "it was ended"
        self._each(lambda worker: worker.end(self.loss))
        shutil.rmtree(self._folder, ignore_errors=True)

    def _receive(self, call: tuple[Any, ...], timeout_s: float | None) -> None:
        """Wait until all have answered. If one has failed, the others may wait for it; they are given up then."""
        name, deadline = call[0], None if timeout_s is None else time.monotonic() + timeout_s
        error: BaseException | None = None
        while waiting := [worker for worker in self._workers if not worker.has_answered(*call)]:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = _readable(waiting, left)
            for worker in ready:
                worker.receive(name, timeout_s)
                if error is None and worker.has_answered(*call) and (error := worker.error(*call)) is not None:
                    deadline = min(deadline or math.inf, time.monotonic() + _GRACE_S)
            if not ready and error is not None:
                lost = self.lost(f"a rank of the engine failed in {name!r} while others waited for it: {error}")
                raise error if name in _MAY_FAIL else lost
            if not ready:
                raise self._hang(waiting, name, timeout_s)

    def _hang(self, waiting: Sequence[WorkerProcess], name: str, timeout_s: float | None) -> WorkerLostError:
        """End all, some of which do not answer. The stacks of all go to the log: those may wait for one that has answered."""
        log.error("%s: no answer; the stacks of all ranks follow", ", ".join(worker.label for worker in waiting))
        for worker in self._workers:
            worker.dump_stacks()
        time.sleep(DUMP_S)
        return self.lost(f"{waiting[0].label} did not answer to {name!r} within {timeout_s:g} s")

    def lost(self, why: str) -> WorkerLostError:
        """End all at once; the error for it."""
        with self._lock:
            self.loss = self.loss or why
        self._each(lambda worker: worker.kill(self.loss))
        return WorkerLostError(self.loss)

    def _each(self, end: Callable[[WorkerProcess], None]) -> None:
        """End all workers at once: one on a host that hangs takes a while."""
        with ThreadPoolExecutor(max(1, len(self._workers))) as threads:
            list(threads.map(end, self._workers))

    def _one_lost(self, why: str) -> None:
        with self._lock:
            if self.loss:
                return
            self.loss = why
        self.lost(why)
        self._on_lost()

    def _one_prepared(self, number: int, digest: str, error: Exception | None) -> None:
        with self._lock:
            answers = self._prepared[number]
            answers.append((digest, error))
            if len(answers) < len(self._workers):
                return
            del self._prepared[number]
        self._on_prepared(number, digest, next((error for _, error in answers if error is not None), None))


def _readable(workers: Sequence[WorkerProcess], timeout_s: float | None) -> list[WorkerProcess]:
    """Those who have sent something, or have ended. Descriptors may be of any size, which `select.select` does not take."""
    poll = select.poll()
    by_descriptor = {worker.fileno(): worker for worker in workers}
    if -1 in by_descriptor:  # closed
        return [by_descriptor[-1]]
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    ready = poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1e3))
    return [by_descriptor[descriptor] for descriptor, _ in ready]
