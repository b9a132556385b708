"""The step loop: one thread owns scheduler and runner, and does schedule -> launch -> wait -> update until it is told to stop.

With asynchronous scheduling the next step is scheduled and launched before the one on the device is waited for, so the device need
not wait for the host. What the host learns too late, it takes back: a token after a stop token is dropped.

Others talk to the loop through a queue of commands; what each step brings goes to one callback, on the loop's thread.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol, TypeVar

from triptych_common.rpc.errors import InternalError, ServiceUnavailableError, TriptychError, UnimplementedError

from triptych_engine.media.item import Embeddings, FetchOrder
from triptych_engine.scheduling.output import SchedulerOutput, SequenceOutput, StepResult
from triptych_engine.scheduling.request import FinishReason, Request
from triptych_engine.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)
T = TypeVar("T")


class LaunchedStep(Protocol):
    """A step that the device computes."""

    def result(self) -> StepResult:
        """Wait for its end. To be called once, in the order in which steps were launched."""
        ...


class Runner(Protocol):
    """What the loop needs of the device side."""

    def launch(self, scheduled: SchedulerOutput) -> LaunchedStep:
        """Have the device compute a step after those launched before it; need not wait for it."""
        ...

    def check_device(self) -> None:
        """Raise when the device computes nothing any more, whatever it is told. Asked after a step that failed."""
        ...

    def allocate_cache(self) -> None: ...
    def free_cache(self) -> None: ...


class Fetcher(Protocol):
    """What the loop needs of those who fetch embeddings; each order ends in one `EngineCore.deliver`, unless it is cancelled."""

    def submit(self, orders: Sequence[FetchOrder], cancelled: Sequence[int]) -> None:
        """Begin orders and give up earlier ones, by number. Called on the loop's thread; must return at once."""
        ...


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine was after a step."""

    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    block_size: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_preemptions: int
    num_generated_tokens: int


#: Called after each step, and when requests end between steps: step number, outputs, load. Must return at once.
OnOutputs = Callable[[int, Sequence[SequenceOutput], Load], None]


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step on the device."""

    scheduled: SchedulerOutput
    launched: LaunchedStep
    started_s: float


def new_device_thread() -> ThreadPoolExecutor:
    """One thread, for all that computes: loading, warm-up and the step loop."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")


class EngineCore:
    """Scheduler and runner on a thread of their own.

    Args:
        on_outputs: gets every output; called on the loop's thread.
        fetcher: fetches the embeddings of media; without it requests with media are refused.
        async_scheduling: schedule and launch a step while the one before it runs.
        on_death: called on the loop's thread when it ends by an error that it could not pin on requests.
        device_thread: an executor of one thread, on which the loop runs. The model must have been loaded on the same thread: OpenMP
            keeps a team of workers for each thread that ever computed, and with two teams on the cores it no longer spins between
            parallel regions but sleeps, which halves the speed of small steps.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        on_outputs: OnOutputs,
        on_death: Callable[[BaseException], None] = lambda error: None,
        device_thread: ThreadPoolExecutor | None = None,
        fetcher: Fetcher | None = None,
        async_scheduling: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._on_outputs = on_outputs
        self._on_death = on_death
        self._fetcher = fetcher
        self._max_in_flight = 1 if async_scheduling else 0  # steps that are left to run while the next is scheduled
        self._in_flight: deque[_Flight] = deque()
        self._landed_s = 0.0  # when the last step's result was there
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False
        self._asleep = False
        self._step = 0
        self.load = self._measure_load()
        self._device_thread = device_thread or new_device_thread()
        self._loop: Future[None] | None = None

    # -- called from other threads ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop = self._device_thread.submit(self._run)

    def add(self, request: Request) -> None:
        """Queue a request. Whatever becomes of it, a last output with a finish reason will be published."""
        self._commands.put(lambda: self._add(request))

    def deliver(self, number: int, result: Embeddings | TriptychError) -> None:
        """Hand in what came of an order of embeddings."""
        self._commands.put(lambda: self._deliver(number, result))

    def abort(self, request_ids: Sequence[str]) -> Future[list[str]]:
        """End requests before the next step; the result is the ids of those that were alive."""
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
        """Forget cached prefixes and unused embeddings; the result is how many blocks were."""
        return self.call(self._scheduler.reset_caches)

    def sleep(self) -> Future[None]:
        """Abort what is left, forget cached prefixes, give the KV cache back; requests are refused until `wake_up`."""
        return self.call(self._sleep)

    def wake_up(self) -> Future[None]:
        """Take the KV cache again and serve."""
        return self.call(self._wake_up)

    def stop(self, timeout_s: float = 30.0) -> None:
        """End the loop after the step in hand; live requests are aborted."""
        self._commands.put(self._stop)
        if self._loop is not None:
            wait([self._loop], timeout_s)

    @property
    def num_in_flight(self) -> int:
        """Steps that were launched and are not booked."""
        return len(self._in_flight)

    # -- on the loop's thread -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._run_commands(block=not (self._scheduler.has_work or self._in_flight))
                self._order_embeddings()
                if self._scheduler.has_work or self._in_flight:
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
        """Launch the next step, if there is one, then book the one before it; without asynchronous scheduling, the same.

        An error in a step ends the requests that were part of it, and nothing else.
        """
        if self._scheduler.must_book:
            self._book_all()
        scheduled = self._scheduler.schedule()
        if not scheduled.is_empty:
            self._launch(scheduled)
        num_left = 0 if scheduled.is_empty else self._max_in_flight
        while len(self._in_flight) > num_left:
            self._book()

    def _launch(self, scheduled: SchedulerOutput) -> None:
        started_s = time.perf_counter()
        try:
            launched = self._runner.launch(scheduled)
        except Exception as error:
            self._fail(scheduled, error)
        else:
            self._in_flight.append(_Flight(scheduled, launched, started_s))

    def _book(self) -> None:
        """Wait for the oldest step in flight, and publish what it brought."""
        flight = self._in_flight.popleft()
        scheduled = flight.scheduled
        try:
            result = flight.launched.result()
            # The device began with it when it was launched, or when it was done with the one before.
            started_s, self._landed_s = max(flight.started_s, self._landed_s), time.perf_counter()
            self._scheduler.observe(scheduled, self._landed_s - started_s)
            outputs = self._scheduler.update(scheduled, result)
        except Exception as error:
            self._fail(scheduled, error)
        else:
            self._step += 1
            self._publish(outputs)

    def _book_all(self) -> None:
        while self._in_flight:
            self._book()

    def _fail(self, scheduled: SchedulerOutput, error: Exception) -> None:
        request_ids = ", ".join(scheduled.num_scheduled_tokens)
        log.error("step %d failed with %d requests in it: %s", self._step, len(scheduled.parts), request_ids, exc_info=error)
        failure = InternalError(f"the engine step failed ({type(error).__name__}); the engine's log has the details")
        self._step += 1
        self._publish(self._scheduler.fail_step(scheduled, failure))
        self._runner.check_device()  # a process that is left with a lost one fails every request; one that ends is started again

    def _publish(self, outputs: Sequence[SequenceOutput]) -> None:
        self.load = self._measure_load()
        self._on_outputs(self._step, outputs, self.load)

    def _add(self, request: Request) -> None:
        try:
            if self._asleep or self._stopping:
                raise ServiceUnavailableError(
                    "the engine is asleep" if self._asleep else "the engine is stopping", retry_after_s=5.0
                )
            if request.media.items and self._fetcher is None:
                raise UnimplementedError("this engine fetches no embeddings; media items cannot be taken", field="media")
            self._scheduler.add(request)
        except TriptychError as error:
            usage = (request.num_prompt_tokens, 0, 0)
            self._publish([SequenceOutput(request.request_id, finish_reason=FinishReason.ERROR, error=error, usage=usage)])

    def _deliver(self, number: int, result: Embeddings | TriptychError) -> None:
        outputs = self._scheduler.arrive(number, result)
        if outputs:
            self._publish(outputs)

    def _abort(self, request_ids: Sequence[str]) -> list[str]:
        outputs = self._scheduler.abort(request_ids)
        if outputs:
            self._publish(outputs)
        return [output.request_id for output in outputs]

    def _sleep(self) -> None:
        if self._asleep:
            return
        self._asleep = True
        self._abort(self._scheduler.live_request_ids)
        self._book_all()
        self._runner.launch(self._scheduler.schedule()).result()  # the runner forgets the sequences too
        self._scheduler.reset_caches()
        self._runner.free_cache()

    def _wake_up(self) -> None:
        if self._asleep:
            self._runner.allocate_cache()
            self._asleep = False

    def _stop(self) -> None:
        self._stopping = True
        self._abort(self._scheduler.live_request_ids)
        self._book_all()

    def _measure_load(self) -> Load:
        scheduler, kv_cache = self._scheduler, self._scheduler.kv_cache
        return Load(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_blocks=kv_cache.pool.num_blocks,
            num_free_blocks=kv_cache.pool.num_free_blocks,
            block_size=kv_cache.block_size,
            prefix_cache_queries=kv_cache.prefix_cache_queries,
            prefix_cache_hits=kv_cache.prefix_cache_hits,
            num_preemptions=scheduler.num_preemptions,
            num_generated_tokens=scheduler.num_generated_tokens,
        )
