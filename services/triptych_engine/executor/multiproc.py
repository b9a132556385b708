"""An executor whose work is done by a worker process.

The engine's own process then keeps its interpreter lock for gRPC and the scheduler. A kernel that crashes takes no stream along:
the worker is replaced, and the scheduler computes its sequences again. vLLM has the same two forms, its `uni` and `mp`.
"""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any

from triptych.errors import ServiceUnavailableError, StartupError
from triptych_common.constraints.spec import ConstraintSpec

from triptych_engine.executor.nodes import Nodes
from triptych_engine.executor.protocol import ExecutorInfo, WorkerLostError
from triptych_engine.executor.worker import Resource, WorkerConfig
from triptych_engine.executor.worker_group import WorkerGroup
from triptych_engine.scheduling.output import SchedulerOutput, StepResult

log = logging.getLogger(__name__)
#: Pause between two looks whether a worker is still there, in seconds.
_LOOK_S = 0.2
#: How often a model is loaded at most on several hosts, if one is lost meanwhile.
_LOAD_ATTEMPTS = 3


@dataclass(eq=False)
class Handle:
    """Something that a worker keeps for as long as this object lives."""

    number: int
    what: Resource
    #: Of an adapter.
    digest: str


class MultiprocExecutor:
    """Implements `Executor` with a process.

    Args:
        config: what the worker begins with.
        step_timeout_s: a worker that takes longer for a step hangs; it is ended.
        on_lost: called on another thread when the worker has ended by itself.
        num_workers: ranks that compute the model together. Each has a process.
        nodes: other hosts that have some of them; None if all are on this one.
    """

    def __init__(
        self,
        config: WorkerConfig,
        step_timeout_s: float = 300.0,
        on_lost: Callable[[], None] = lambda: None,
        num_workers: int = 1,
        nodes: Nodes | None = None,
    ) -> None:
        self._step_timeout_s, self._on_lost, self._is_asynchronous = step_timeout_s, on_lost, config.is_asynchronous
        self._configs, self._nodes = [config] * num_workers, nodes
        self._workers: WorkerGroup | None = None
        self._lock = threading.RLock()
        #: The worker has its model. Otherwise what is asked waits for it.
        self._may_ask = False
        self._is_closed = False
        self._numbers = itertools.count()
        #: Number -> what was asked, and the future of the answer.
        self._asked: dict[int, tuple[Resource, Future[Any]]] = {}
        self._prepared: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()
        #: Numbers of what nobody needs any more. Finalizers add to it, at any time and on any thread.
        self._released: deque[int] = deque()

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [] if self._workers is None else self._workers.pids

    def load(self) -> ExecutorInfo:
        loaded = self._load_all(1 if self._nodes is None else _LOAD_ATTEMPTS)
        # A later worker need not find out the same again.
        info = loaded[0][0]
        known = zip(self._configs, loaded, strict=True)
        self._configs = [
            replace(config, verdicts=verdicts, is_asynchronous=info.is_asynchronous) for config, (_, verdicts) in known
        ]
        self._is_asynchronous, self._may_ask = info.is_asynchronous, True
        block_bytes = tuple(size for one, _ in loaded for size in one.block_bytes)
        return replace(info, is_asynchronous=True, block_bytes=block_bytes)

    def _load_all(self, attempts: int) -> list[tuple[ExecutorInfo, bytes]]:
        """Load the model in all workers. One on another host may be lost for reasons of that host, and come back."""
        for left in reversed(range(attempts)):
            try:
                loaded: list[tuple[ExecutorInfo, bytes]] = self._start().call("load")
            except WorkerLostError as error:
                if not left or self._is_closed:
                    raise StartupError(f"the model cannot be loaded: {error}") from error
                log.error("%s; the model is loaded again", error)
            else:
                return loaded
        raise AssertionError

    def launch(self, scheduled: SchedulerOutput) -> None:
        released = [self._released.popleft() for _ in range(len(self._released))]
        if scheduled.embeddings:
            slices = {key: [one.cut() for one in some] for key, some in scheduled.embeddings.items()}
            scheduled = replace(scheduled, embeddings=slices)
        self._running().post("launch", scheduled, released, timeout_s=self._step_timeout_s)

    def sample(self, step_id: int) -> None:
        """Nothing to do: the worker samples as soon as it has launched the step."""

    def result(self, step_id: int) -> StepResult:
        workers = self._running()
        if self._is_asynchronous:
            workers.post("result", step_id, timeout_s=self._step_timeout_s)
        results: list[StepResult] = workers.answers("result", step_id, timeout_s=self._step_timeout_s)
        if len(results) > 1 and any(result != results[0].outcome() for result in results[1:]):
            raise workers.lost("the ranks of the engine have sampled different tokens")
        return results[0]

    def compile_constraint(self, spec: ConstraintSpec) -> Future[Any]:
        return self._ask(("constraint", spec))

    def load_lora(self, name: str) -> Future[Any]:
        return self._ask(("lora", name))

    def check_health(self) -> None:
        workers = self._running()
        try:
            workers.call("check_health", timeout_s=self._step_timeout_s)
        except WorkerLostError:
            raise
        except Exception as error:  # its device is lost, which another process can use again
            raise workers.lost(f"the engine's worker was ended, because its device is lost: {error}") from error

    def free_cache(self) -> None:
        self._unless_lost("free_cache")

    def unload(self) -> None:
        self._unless_lost("unload")

    def restore(self) -> None:
        if self._workers is not None and not self._workers.loss:
            self._workers.call("restore")
            return
        with self._lock:
            self._may_ask = False  # until the model is there, questions wait
        self._end()
        self._start().call("restore")
        self._prepare_again()

    def close(self) -> None:
        self._is_closed = True
        self._end()
        if self._nodes is not None:
            self._nodes.close()
        for number in list(self._asked):
            self._answered(number, "", ServiceUnavailableError("the engine is stopping", retry_after_s=5.0))

    def _start(self) -> WorkerGroup:
        if self._is_closed:
            raise WorkerLostError("the engine is stopping")
        self._workers = WorkerGroup(self._configs, self._answered, self._on_lost, self._nodes)
        if self._is_closed:  # while it was started, for which other nodes may have been waited for
            self._end()
            raise WorkerLostError("the engine is stopping")
        return self._workers

    def _end(self) -> None:
        if self._workers is not None:
            self._workers.end()

    def _running(self) -> WorkerGroup:
        if self._workers is None:
            raise ServiceUnavailableError("the engine's model is not loaded", retry_after_s=5.0)
        return self._workers

    def _unless_lost(self, name: str) -> None:
        """Free something. A process that has ended holds nothing."""
        try:
            self._running().call(name, timeout_s=self._step_timeout_s)
        except WorkerLostError as error:
            log.warning("%s", error)

    # -- what sequences need beside steps, on any thread --------------------------------------------------------------------------

    def _ask(self, what: Resource) -> Future[Any]:
        number, future = next(self._numbers), Future[Any]()
        workers = self._running()
        with self._lock:
            self._asked[number] = what, future
            if self._may_ask:
                workers.ask(number, what)
        return future

    def _answered(self, number: int, digest: str, error: Exception | None) -> None:
        with self._lock:
            what, future = self._asked.pop(number, (None, None))
            if what is None or future is None or not future.set_running_or_notify_cancel():
                return
            prepared = self._prepared.get(number)
            if prepared is None and error is None:
                prepared = self._prepared[number] = Handle(number, what, digest)
                weakref.finalize(prepared, self._released.append, number).atexit = False
        if prepared is not None and (error is not None or prepared.digest != digest):
            log.warning("the adapter %s is not as it was; sequences that have it cannot go on", what[1])
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(prepared)

    def _prepare_again(self) -> None:
        """Ask a new worker for all that the old one had, or was asked for. Adapters must be there before the next step."""
        workers = self._running()
        with self._lock:
            had = [one for one in list(self._prepared.values()) if one.number not in self._asked]
            self._asked.update((one.number, (one.what, Future())) for one in had)
            for number, (what, _) in self._asked.items():
                workers.ask(number, what)
            waiting = [self._asked[one.number][1] for one in had if one.what[0] == "lora"]
            self._may_ask = True
        while wait(waiting, _LOOK_S).not_done:
            if workers.loss:
                raise WorkerLostError(workers.loss)
