"""The step loop. One thread owns the scheduler and calls the executor: schedule, launch, sample, wait for the result, update.

With asynchronous scheduling, the loop schedules and launches the next step before it waits for the result of the current one, so
the device does not wait for the host. Results that turn out to be superfluous are dropped, for example a token after a stop token.

Other threads talk to the loop through a queue of commands. The outputs of each step go to one callback, on the loop's thread.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TypeVar

from triptych.errors import InternalError, ServiceUnavailableError, TriptychError, UnimplementedError
from triptych_common.arrivals import Arrivals

from triptych_engine.executor.protocol import Executor
from triptych_engine.load import Load, StepProgress, load_of
from triptych_engine.media.item import Embeddings, Fetcher
from triptych_engine.scheduling.cache.block_pool import KVEvent
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import Request
from triptych_engine.scheduling.scheduler import Scheduler
from triptych_engine.steps import Steps

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Called with step number, outputs and load, after each step and when requests end between steps. Must not block.
OnOutputs = Callable[[int, Sequence[SequenceOutput], Load], None]
#: Called with the number of the change, and the prefixes that were added and removed. Must not block.
OnBlocks = Callable[[int, Sequence[bytes], Sequence[bytes]], None]
#: Called with what has happened to the prefix cache since the last call, in order. Must not block.
OnKVEvents = Callable[[Sequence[KVEvent]], None]


def new_device_thread() -> ThreadPoolExecutor:
    """A pool of one thread that does all computation: loading, warm-up and the step loop."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")


class EngineCore:
    """Runs scheduler and executor on a dedicated thread. All public methods except `step` may be called from other threads.

    Args:
        on_outputs: receives every output; called on the loop's thread.
        on_death: called on the loop's thread when an error that belongs to no request ends the loop.
        device_thread: a pool of one thread, on which the loop runs. The model must have been loaded on the same thread: OpenMP
            keeps a team of workers for each thread that has computed. When two teams share the cores, OpenMP workers sleep instead
            of spin between parallel regions, which halves the speed of small steps.
        fetcher: fetches the embeddings of media; without it, requests with media are refused.
        async_scheduling: schedule and launch a step while the previous one runs.
        on_restart: called on the loop's thread with True before a lost executor is restored, and with False after it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        on_outputs: OnOutputs,
        on_death: Callable[[BaseException], None] = lambda error: None,
        device_thread: ThreadPoolExecutor | None = None,
        fetcher: Fetcher | None = None,
        async_scheduling: bool = False,
        on_restart: Callable[[bool], None] = lambda is_restarting: None,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self.compile_constraint, self.load_lora = executor.compile_constraint, executor.load_lora  # before a request is added
        self._on_outputs = on_outputs
        self._on_death = on_death
        #: Called like `on_outputs` with changes of the prefix cache, each with its number, once somebody watches.
        self.on_blocks: OnBlocks = lambda version, added, removed: None
        #: Called like `on_outputs`, if the block pool records events.
        self.on_kv_events: OnKVEvents = lambda events: None
        self._fetcher = fetcher
        self._progress, self._arrivals = StepProgress(), Arrivals()
        self._steps = Steps(scheduler, executor, self._progress, self._publish, on_restart, 1 if async_scheduling else 0)
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False
        self._asleep = self._is_waking = False
        #: Requests that were queued, counted on the thread that does it, and those that the loop has taken.
        self._num_added = self._num_taken = 0
        self.load = load_of(scheduler, self._progress, self._arrivals)
        self._device_thread = device_thread or new_device_thread()
        self._loop: Future[None] | None = None

    def start(self) -> None:
        self._loop = self._device_thread.submit(self._run)

    def add(self, request: Request) -> None:
        """Queue a request. A last output with a finish reason is always published, also when the request is refused."""
        self._num_added += 1
        self._commands.put(lambda: self._add(request))

    def deliver(self, number: int, result: Embeddings | TriptychError) -> None:
        """Pass the result of a fetch order to the scheduler."""
        self._commands.put(lambda: self._deliver(number, result))

    def abort(self, request_ids: Sequence[str]) -> Future[list[str]]:
        """End requests before the next step; the result is the ids of those that were live."""
        return self.call(lambda: self._abort(request_ids))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run a function on the loop's thread, between two steps."""
        future: Future[T] = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._commands.put(command)
        return future

    def reset_prefix_cache(self) -> Future[int]:
        """Drop cached prefixes and unused embeddings; the result is the number of cached blocks that were dropped."""
        dropped = self.call(self._scheduler.reset_caches)
        self._commands.put(self._publish_blocks)
        return dropped

    def watch_blocks(self) -> Future[tuple[int, list[bytes]]]:
        """Begin to publish changes of the prefix cache. The result is all that it holds, and the number of the last change."""
        return self.call(self._watch_blocks)

    def sleep(self, *, unload: bool = False) -> Future[None]:
        """Abort live requests, and free the KV cache, with `unload` the model too. Requests are refused until `wake_up`."""
        return self.call(lambda: self._sleep(unload))

    def wake_up(self) -> Future[None]:
        """Make what was freed usable again, and accept requests. The future has an error if that fails; the engine sleeps on."""
        return self.call(self._wake_up)

    def recover(self) -> None:
        """Restore an executor that was lost while nothing was computed. If that fails, the loop ends."""
        self._commands.put(lambda: None if self._asleep else self._steps.recover())  # asleep, `wake_up` restores it

    def stop(self, timeout_s: float = 30.0) -> None:
        """End the loop after the current step; live requests are aborted."""
        self._steps.is_stopping = True
        if self._steps.is_restarting or self._is_waking:  # it may wait for other hosts, as long as these are away
            self._executor.close()
        self._commands.put(self._stop)
        if self._loop is not None:
            wait([self._loop], timeout_s)

    @property
    def num_in_flight(self) -> int:
        """Steps that were launched and are not completed."""
        return self._steps.num_in_flight

    @property
    def num_restarts(self) -> int:
        """How often the executor was lost and restored."""
        return self._steps.num_restarts

    def _run(self) -> None:
        try:
            while not self._stopping:
                is_idle = not (self._steps.num_in_flight or self._scheduler.has_work)
                if is_idle:
                    self._progress.pause()
                self._run_commands(block=is_idle)
                self._order_embeddings()
                if self._steps.num_in_flight or self._scheduler.has_work:
                    self._progress.resume()
                    self.step()
                    self._order_embeddings()
        except BaseException as error:
            log.critical("the engine loop died", exc_info=error)
            self._on_death(error)

    def _run_commands(self, *, block: bool) -> None:
        try:
            self._commands.get(block=block)()
            while True:
                self._commands.get_nowait()()
        except queue.Empty:
            return

    def _order_embeddings(self) -> None:
        orders, cancelled = self._scheduler.take_fetches()
        if self._fetcher is not None and (orders or cancelled):
            self._fetcher.submit(orders, cancelled)

    def step(self) -> None:
        """See `Steps.step`."""
        self._steps.step()

    def current_load(self) -> Load:
        """The load as it is now, for those who wait for a step."""
        num_queued = max(0, self._num_added - self._num_taken)
        return replace(
            self.load,
            num_waiting=self.load.num_waiting + num_queued,
            step_age_s=self._progress.age_s,
            num_recent=self._arrivals.num_recent + num_queued,
            is_restarting=self._steps.is_restarting,
        )

    def _publish(self, outputs: Sequence[SequenceOutput]) -> None:
        self.load = replace(load_of(self._scheduler, self._progress, self._arrivals), is_restarting=self._steps.is_restarting)
        self._on_outputs(self._steps.number, outputs, self.load)
        self._publish_blocks()

    def _publish_blocks(self) -> None:
        pool = self._scheduler.kv_cache.pool
        if (changes := pool.take_changes()) is not None:
            self.on_blocks(*changes)
        if events := pool.take_events():
            self.on_kv_events(events)

    def _watch_blocks(self) -> tuple[int, list[bytes]]:
        self._publish_blocks()
        return self._scheduler.kv_cache.pool.watch()

    def _add(self, request: Request) -> None:
        self._num_taken += 1
        try:
            if self._asleep or self._stopping:
                raise ServiceUnavailableError(f"the engine is {'asleep' if self._asleep else 'stopping'}", retry_after_s=5.0)
            if request.media.items and self._fetcher is None:
                raise UnimplementedError("this engine fetches no embeddings; media items cannot be taken", field="media")
            self._scheduler.add(request)
            self._arrivals.add()
            # No step may follow for long, if the request waits for embeddings.
            self.load = load_of(self._scheduler, self._progress, self._arrivals)
        except Exception as error:
            self._publish(self._scheduler.refuse(request, self._reason("a request was added", error)))

    def _deliver(self, number: int, result: Embeddings | TriptychError) -> None:
        awaiting = self._scheduler.ids_awaiting(number)
        try:
            outputs = self._scheduler.arrive(number, result)
        except Exception as error:
            outputs = self._scheduler.fail(awaiting, self._reason("embeddings arrived", error))
        if outputs:
            self._publish(outputs)

    @staticmethod
    def _reason(when: str, error: Exception) -> TriptychError:
        """The error to report to requests."""
        if isinstance(error, TriptychError):
            return error
        log.error("unexpected error when %s", when, exc_info=error)
        return InternalError(f"the engine failed when {when} ({type(error).__name__}); the engine's log has the details")

    def _abort(self, request_ids: Sequence[str]) -> list[str]:
        outputs = self._scheduler.abort(request_ids)
        if outputs:
            self._publish(outputs)
        return [output.request_id for output in outputs]

    def _sleep(self, unload: bool) -> None:
        if not self._asleep:
            self._asleep = True
            self._abort(self._scheduler.live_request_ids)
            self._steps.complete_all()
            self.step()  # computes nothing, but tells the executor to drop the sequences
            self._steps.complete_all()
            self._executor.free_cache()  # first: it ends what touches the second tier's memory in the background
            self._scheduler.reset_caches()
            self._publish_blocks()  # no step follows that would
        if unload:
            self._executor.unload()

    def _wake_up(self) -> None:
        if self._asleep:
            self._is_waking = True
            try:
                self._executor.restore()
            finally:
                self._is_waking = False
            self._asleep = False

    def _stop(self) -> None:
        self._stopping = True
        self._abort(self._scheduler.live_request_ids)
        self._steps.complete_all()
