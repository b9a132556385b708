"""The process of a `MultiprocExecutor`: an executor behind two channels.

`python -m triptych_engine.executor.worker STEPS PREPARATIONS`, with the file descriptors of the two sockets, which are inherited,
or `... HOST PORT TOKEN` on another host than the engine's, to which it connects (`executor.nodes`). Standard input has the secret.
It ends when the engine's process has ended, however that ended, unless its interpreter lock is held by something that hangs.

The first message on STEPS is a `WorkerConfig`. Then come calls, (name, arguments...), each answered by an `Answer`. `launch` is
answered with the result of its step. Where a device apart from the host's cores computes the steps, that waits until `result` is
called: the next step is launched before. On PREPARATIONS come requests for what takes a while and needs no step: (number,
"constraint", spec) or (number, "lora", name). The answer is (number, digest or "", error).
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.errors import ServiceUnavailableError
from triptych_common.host.garbage import startup_objects_frozen
from triptych_common.host.torch_env import set_torch_environment
from triptych_common.telemetry.logs import LogFormat, configure_logging

from triptych_engine.executor.channel import Channel
from triptych_engine.executor.link import dial
from triptych_engine.executor.nodes import WorkerHello
from triptych_engine.executor.protocol import Executor, ExecutorInfo
from triptych_engine.kv_offload.host_memory import HostMemory
from triptych_engine.runner.place import ALONE, Place
from triptych_engine.runner.verdicts import Verdicts
from triptych_engine.scheduling.output import SchedulerOutput, StepResult

if TYPE_CHECKING:
    from triptych.v1 import common_pb2
    from triptych_common.model.pooling import PoolingModel

    from triptych_engine.settings import EngineSettings

#: What sequences need beside steps: ("constraint", spec) or ("lora", name).
Resource = tuple[str, Any]
#: Makes the process write the stacks of its threads to standard error.
DUMP_SIGNAL = signal.SIGUSR1


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a worker begins with."""

    #: Makes the executor, given what is known of the model, and the worker's place. Called in the worker.
    make_executor: Callable[[Verdicts, Place], Executor]
    place: Place = ALONE
    #: File descriptors that the worker inherits.
    descriptors: tuple[int, ...] = ()
    #: Verdicts, pickled, of an earlier worker with the same model and place; empty for the first one. The engine does not unpickle
    #: them: classes of the runner import torch.
    verdicts: bytes = b""
    #: As in ExecutorInfo, if it is known from an earlier worker.
    is_asynchronous: bool = False
    log_level: str = "INFO"
    log_format: LogFormat = "text"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returned or raised."""

    #: The call: (name, arguments...); ("result", step_id) for a step.
    call: tuple[Any, ...]
    value: Any = None
    error: BaseException | None = None


def executor_of_worker(
    settings: EngineSettings,
    model: common_pb2.ModelInfo,
    path: Path,
    pooling: PoolingModel | None,
    engine_bytes: int,
    host_memory: HostMemory | None,
    verdicts: Verdicts,
    place: Place,
) -> Executor:
    """The executor of an engine's model in this process.

    Args:
        engine_bytes: memory of the engine's process, of which a limit of the engine's memory holds, too.
        host_memory: where blocks are that were evicted from the KV cache.
    """
    # These import torch, which the engine's own process does not need.
    from triptych_engine.executor.in_process import InProcessExecutor
    from triptych_engine.runner.config import runner_config, share_of_resources

    config = runner_config(settings, model, path, pooling, host_memory)
    if settings.memory_limit is not None:  # otherwise it is what is available, which is without that process
        config = replace(config, reserved_bytes=config.reserved_bytes + engine_bytes)
    if place.model_path is not None:
        config = replace(config, model_path=place.model_path)
    if place.size > 1:
        config = share_of_resources(replace(config, place=place))
    # Ranks must know the same: those that ask would wait for those that do not.
    return InProcessExecutor(config, verdicts=verdicts, keeps_verdicts=place.size == 1)


class Worker:
    """Serves the calls of one `MultiprocExecutor`, until that closes its channels or ends.

    Args:
        steps, preparations: see above.
    """

    def __init__(self, steps: Channel, preparations: Channel) -> None:
        self._steps, self._preparations = steps, preparations
        config: WorkerConfig = steps.receive()
        configure_logging(f"engine-{config.place.rank}" if config.place.rank else "engine", config.log_level, config.log_format)
        self._verdicts = pickle.loads(config.verdicts) if config.verdicts else Verdicts()  # noqa: S301 - from a worker
        self._make_executor, self._place = config.make_executor, config.place
        self._known: Executor | None = None
        self._is_asynchronous = config.is_asynchronous
        self._calls: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._failed: dict[int, Exception] = {}  # step_id -> why it could not be launched
        self._prepared: dict[int, Future[Any]] = {}  # number -> what the executor keeps as long as this does

    def run(self) -> None:
        """Serve until the other end is closed, which ends the process."""
        threading.Thread(target=self._prepare, name="preparations", daemon=True).start()
        threading.Thread(target=self._read, name="calls", daemon=True).start()
        calls: dict[str, Callable[..., Any]] = {
            "load": self._load,
            "result": self._result,
            "check_health": lambda: self._executor.check_health(),
            "free_cache": lambda: self._executor.free_cache(),
            "unload": lambda: self._executor.unload(),
            "restore": self._restore,
        }
        while True:
            call = self._calls.get()
            if call[0] == "launch":
                self._launch(*call[1:])
                if self._is_asynchronous:
                    continue
                call = ("result", call[1].step_id)
            try:
                answer = Answer(call, calls[call[0]](*call[1:]))
            except Exception as error:
                answer = Answer(call, error=portable(error))
            with contextlib.suppress(OSError):  # the engine has ended
                self._steps.send(answer)

    def _read(self) -> None:
        """Take calls while one is computed. Otherwise both ends could wait for each other to read."""
        while True:
            try:
                self._calls.put(self._steps.receive())
            except EOFError:
                os._exit(0)  # the engine has ended; a step may be running here that would end much later

    @property
    def _executor(self) -> Executor:
        if self._known is None:
            raise ServiceUnavailableError("the engine's model is not loaded", retry_after_s=5.0)
        return self._known

    def _new_executor(self) -> Executor:
        with startup_objects_frozen():  # it imports torch
            return self._make_executor(self._verdicts, self._place)

    def _load(self) -> tuple[ExecutorInfo, bytes]:
        executor = self._new_executor()
        info = executor.load()
        self._known, self._is_asynchronous = executor, info.is_asynchronous
        return info, pickle.dumps(self._verdicts)

    def _restore(self) -> None:
        executor = self._known or self._new_executor()
        executor.restore()
        self._known = executor

    def _launch(self, scheduled: SchedulerOutput, released: Iterable[int]) -> None:
        for number in released:
            self._prepared.pop(number, None)
        try:
            self._executor.launch(scheduled)
            self._executor.sample(scheduled.step_id)
        except Exception as error:
            self._failed[scheduled.step_id] = error

    def _result(self, step_id: int) -> StepResult:
        error = self._failed.pop(step_id, None)
        if error is not None:
            raise error
        result = self._executor.result(step_id)
        # All ranks must have sampled the same tokens. The first one's answer has the rest.
        return result if self._place.rank == 0 else result.outcome()

    def _prepare(self) -> None:
        while True:
            try:
                number, kind, argument = self._preparations.receive()
            except EOFError:
                return  # the engine has ended
            self._begin(number, kind, argument)

    def _begin(self, number: int, kind: str, argument: Any) -> None:
        try:
            executor = self._executor
            future = executor.compile_constraint(argument) if kind == "constraint" else executor.load_lora(argument)
        except Exception as error:
            self._tell(number, "", error)
        else:
            future.add_done_callback(lambda done: self._keep(number, done))

    def _keep(self, number: int, done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            self._prepared[number] = done
        self._tell(number, "" if error is not None else getattr(done.result(), "digest", ""), error)

    def _tell(self, number: int, digest: str, error: BaseException | None) -> None:
        with contextlib.suppress(OSError):  # the engine has ended
            self._preparations.send((number, digest, None if error is None else portable(error)))


def portable(error: BaseException) -> BaseException:
    """The error, or one that says the same, such that it can be sent. It has a note with the stack of this process."""
    stack = "".join(traceback.format_tb(error.__traceback__))
    try:
        copy: BaseException = pickle.loads(pickle.dumps(error))  # noqa: S301 - made in this line
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note(f"in the engine's worker:\n{stack}")
    return copy


def main(*arguments: str) -> None:
    """Serve an engine; for the arguments see above."""
    # Ctrl-C reaches all processes of a terminal; the engine's process decides when this one ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(DUMP_SIGNAL)
    set_torch_environment()
    Worker(*(_inherited(*arguments) if len(arguments) == 2 else _dialled(*arguments))).run()


def _inherited(*descriptors: str) -> list[Channel]:
    return [Channel(socket.socket(fileno=int(descriptor))) for descriptor in descriptors]


def _dialled(host: str, port: str, token: str) -> list[Channel]:
    channels, secret = [], sys.stdin.buffer.read()
    for is_steps in (True, False):
        channels.append(dial(host, int(port), secret))
        channels[-1].send(WorkerHello(token, is_steps))
    return channels


if __name__ == "__main__":
    # Pickles name their classes by the module, which is another one than `__main__`.
    from triptych_engine.executor import worker

    with contextlib.suppress(EOFError):  # the engine ended before it said what to do
        worker.main(*sys.argv[1:])
