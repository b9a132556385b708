"""Steps on their way through the executor: launched, completed, failed, or lost with the process that computed them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from triptych.errors import InternalError

from triptych_engine.executor.protocol import Executor, WorkerLostError
from triptych_engine.load import StepProgress
from triptych_engine.scheduling.output import SchedulerOutput, SequenceOutput
from triptych_engine.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)
#: Restarts of the executor without a completed step between them.
_MOST_RESTARTS = 3


class Steps:
    """Launches steps, and completes them in order. All methods are called on the loop's thread.

    Args:
        progress: is told when steps end.
        publish: receives the outputs of each step.
        on_restart: called with True before an executor that was lost is restored, and with False after it.
        max_in_flight: steps that may run while the next one is scheduled.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        progress: StepProgress,
        publish: Callable[[Sequence[SequenceOutput]], None],
        on_restart: Callable[[bool], None],
        max_in_flight: int,
    ) -> None:
        self._scheduler, self._executor, self._progress = scheduler, executor, progress
        self._publish, self._on_restart, self._max_in_flight = publish, on_restart, max_in_flight
        self._in_flight: deque[tuple[SchedulerOutput, float]] = deque()  # each with its launch time
        #: Of the newest step that has ended.
        self.number = 0
        #: The executor is being restored.
        self.is_restarting = False
        #: How often it was restored.
        self.num_restarts = self._restarts_in_a_row = 0  # the latter since a step was completed
        #: A lost executor is not needed any more.
        self.is_stopping = False

    @property
    def num_in_flight(self) -> int:
        """Steps that were launched and are not completed."""
        return len(self._in_flight)

    def step(self) -> None:
        """Launch the next step, if there is one. Then complete the previous one or, without asynchronous scheduling, the same one.

        An error in a step ends only the requests of that step.
        """
        if self._scheduler.needs_results_first:
            self.complete_all()
        scheduled = self._scheduler.schedule()
        if failed := self._scheduler.take_failed():
            self._publish(failed)
        if not scheduled.is_empty:
            self._launch(scheduled)
        num_left = 0 if scheduled.is_empty else self._max_in_flight
        while len(self._in_flight) > num_left:
            self._complete()

    def _launch(self, scheduled: SchedulerOutput) -> None:
        launched_s = time.perf_counter()
        try:
            self._executor.launch(scheduled)
            self._executor.sample(scheduled.step_id)
        except WorkerLostError as error:
            self._restart([scheduled], error)
        except Exception as error:
            self._fail(scheduled, error)
        else:
            self._in_flight.append((scheduled, launched_s))

    def _complete(self) -> None:
        """Wait for the oldest step in flight, and publish its outputs."""
        scheduled, launched_s = self._in_flight.popleft()
        try:
            result = self._executor.result(scheduled.step_id)
        except WorkerLostError as error:
            self._restart([scheduled], error)
            return
        except Exception as error:
            self._fail(scheduled, error)
            return
        self._restarts_in_a_row = 0
        step_s = self._progress.ended(launched_s)
        outputs = self._scheduler.update_from_output(scheduled, result)
        self.number += 1
        self._publish(outputs)
        try:
            self._scheduler.observe(scheduled, step_s)
        except Exception:
            log.exception("the pacer could not use the duration of a step")

    def complete_all(self) -> None:
        """Wait for all steps in flight, and publish their outputs."""
        while self._in_flight:
            self._complete()

    def _restart(self, lost: list[SchedulerOutput], error: WorkerLostError) -> None:
        """Replace an executor that was lost in these steps, and let the sequences go on. Raises if it cannot be replaced.

        Streams see a pause, or go on at another engine: the load says that this one restarts.
        """
        lost += [scheduled for scheduled, _ in self._in_flight]
        self._in_flight.clear()
        self.is_restarting = True
        self._on_restart(True)
        failure = InternalError("the worker was lost in steps with this request; the engine's log has the details")
        self.number += 1
        self._publish(self._scheduler.restart(lost, failure))
        self._restore(error)
        self.is_restarting = False
        self._publish([])
        self._on_restart(False)

    def _restore(self, error: WorkerLostError) -> None:
        while not self.is_stopping:
            self._restarts_in_a_row += 1
            if self._restarts_in_a_row > _MOST_RESTARTS:
                raise error
            log.error("%s; starting another one", error)
            try:
                self._executor.restore()
            except WorkerLostError as again:
                error = again
            else:
                self.num_restarts += 1
                return

    def recover(self) -> None:
        """Replace an executor that was lost while nothing was computed."""
        try:
            self._executor.check_health()
        except WorkerLostError as error:
            self._restart([], error)

    def _fail(self, scheduled: SchedulerOutput, error: Exception) -> None:
        log.error("step %d failed with these requests: %s", self.number, ", ".join(scheduled.num_scheduled_tokens), exc_info=error)
        failure = InternalError(f"the engine step failed ({type(error).__name__}); the engine's log has the details")
        fatal: Exception | None = None
        try:
            self._executor.check_health()
        except WorkerLostError as lost:
            self._restart([scheduled], lost)
            return
        except Exception as lost_device:  # this process must end, so that it is started again
            fatal = lost_device
        self.number += 1
        self._publish(self._scheduler.fail_step(scheduled, failure))
        if fatal is not None:
            raise fatal
