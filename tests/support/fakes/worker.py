"""Executors for a worker process to run: they must be importable there."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
from triptych.errors import ModelNotFoundError, UnsupportedModelError
from triptych_common.constraints.spec import ConstraintSpec
from triptych_engine.executor.multiproc import MultiprocExecutor
from triptych_engine.executor.protocol import ExecutorInfo
from triptych_engine.executor.worker import WorkerConfig
from triptych_engine.runner.place import Place
from triptych_engine.runner.verdicts import Verdicts
from triptych_engine.scheduling.output import SchedulerOutput, StepResult

from support.fakes.runner import FakeRunner

#: A token that a prompt begins with -> what its step does to the process.
CRASH, HANG, EXIT, FAIL, LOSE_DEVICE, DIFFER = range(40, 46)


class DangerousRunner(FakeRunner):
    """A `FakeRunner` that does what prompts say, in a worker process; of several ranks, the last one does it."""

    def __init__(self, verdicts: Verdicts, place: Place) -> None:
        super().__init__()
        self._verdicts, self._is_last, self._differs = verdicts, place.rank == place.size - 1, False

    def load(self) -> ExecutorInfo:
        self._verdicts.of("loaded by", os.getpid)
        return super().load()

    def launch(self, scheduled: SchedulerOutput) -> None:
        for new in scheduled.new:
            danger = new.token_ids[0] if self._is_last else 0
            self._differs |= danger == DIFFER
            if danger == CRASH:
                ctypes.string_at(0)
            elif danger == HANG:
                time.sleep(600)
            elif danger == EXIT:
                os._exit(3)
            elif danger in (FAIL, LOSE_DEVICE):
                self.fail_next_launch = ValueError(f"from process {os.getpid()}")
                self.lost_device = RuntimeError("all calls fail") if danger == LOSE_DEVICE else None
        super().launch(scheduled)

    def compile_constraint(self, spec: ConstraintSpec) -> Future[Any]:
        prepared: Future[Any] = Future()
        if spec.text == "crash" and len(self._verdicts._known) == 1:
            self._verdicts.of("crashed", lambda: True)
            os.kill(os.getpid(), signal.SIGKILL)
        if spec.text.startswith("slow"):
            threading.Timer(0.5, lambda: prepared.set_result(Compiled())).start()
        else:
            prepared.set_result(Compiled())
        return prepared

    def load_lora(self, name: str) -> Future[Any]:
        prepared: Future[Any] = Future()
        if name == "unknown":
            prepared.set_exception(ModelNotFoundError(f"there is no adapter {name!r}", field="lora"))
        else:
            prepared.set_result(Compiled(f"digest of {name}"))
        return prepared

    def restore(self) -> None:
        self._verdicts.of("crashed", lambda: True)
        super().restore()

    def result(self, step_id: int) -> StepResult:
        result = super().result(step_id)
        if any(chunk_id.startswith("large") for chunk_id in result.token_ids):
            result.pooled["large"] = np.zeros(1 << 20)
        if self._differs:
            result.token_ids = {key: [token + 1 for token in tokens] for key, tokens in result.token_ids.items()}
        return result

    def free_cache(self) -> None:
        print(f"{Compiled.num_alive} are prepared", file=sys.stderr, flush=True)


class Compiled:
    """Counts how many of it there are."""

    num_alive = 0

    def __init__(self, digest: str = "") -> None:
        self.digest = digest
        Compiled.num_alive += 1

    def __del__(self) -> None:
        Compiled.num_alive -= 1


class Refusing(DangerousRunner):
    """Cannot load its model."""

    def load(self) -> ExecutorInfo:
        raise UnsupportedModelError("this model is of no kind that is known")


class HalfRefusing(DangerousRunner):
    """The last rank cannot load its model, for which the others wait."""

    def load(self) -> ExecutorInfo:
        if self._is_last:
            raise UnsupportedModelError("this rank is of no kind that is known")
        time.sleep(600)
        raise AssertionError


class Slow(DangerousRunner):
    """Takes a while to load."""

    def load(self) -> ExecutorInfo:
        time.sleep(2)
        return super().load()


class Dying(DangerousRunner):
    """Ends while it loads."""

    def load(self) -> ExecutorInfo:
        os._exit(9)


def a_worker(kind: type[DangerousRunner] = DangerousRunner, step_timeout_s: float = 60.0, **options: Any) -> MultiprocExecutor:
    """An executor with a fake runner in a process of its own."""
    return MultiprocExecutor(WorkerConfig(partial(_make, kind)), step_timeout_s, **options)


def _make(kind: type[DangerousRunner], verdicts: Verdicts, place: Place) -> DangerousRunner:
    return kind(verdicts, place)
