"""An engine of the simulation: the real scheduler, KV cache and pacer, with steps that take virtual time.

It does what `triptych_engine.core` and `steps` do without asynchronous scheduling: commands between steps, schedule, wait, update,
publish. Its tokens depend on the token before and on the position, as those of `SimulatedExecutor`, so an answer that goes on at
another engine is the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from triptych.errors import TriptychError
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.arrivals import Arrivals
from triptych_common.model.blocks import block_id
from triptych_engine.assembly import make_scheduler
from triptych_engine.executor.protocol import ExecutorInfo
from triptych_engine.load import Load, StepProgress, load_of
from triptych_engine.rpc.arrival_notice import INTERVAL_S
from triptych_engine.rpc.convert import to_requests
from triptych_engine.scheduling.output import SchedulerOutput, SequenceOutput, StepResult
from triptych_engine.scheduling.request import Request
from triptych_engine.scheduling.scheduler import Scheduler
from triptych_engine.settings import EngineSettings

from benchmarks.simulation.setup import Setup
from benchmarks.simulation.timeline import Timeline

VOCABULARY = 49152
#: Ids below it are not used: special tokens are there.
FIRST_TOKEN = 1000
MODEL = common_pb2.ModelInfo(
    name="simulated", vocab_size=VOCABULARY, max_model_len=8192, capabilities=common_pb2.Capabilities(continuation=True)
)
Blocks = engine_pb2.WatchBlocksResponse


class Watcher(Protocol):
    """Who gets what an engine's steps bring: a frontend's connection."""

    #: A report of the load is to come: a step that brings this watcher nothing needs no call.
    is_due: bool

    def publish(self, outputs: list[SequenceOutput], load: Load, blocks: Blocks | None) -> None:
        """A step has ended, with these outputs for this watcher's requests."""
        ...

    def notice(self, load: Load) -> None:
        """Requests of others have come."""
        ...


class VirtualEngine:
    """One engine.

    Args:
        number: of the engine, from 0.
        settings: as of a real engine.
    """

    def __init__(self, timeline: Timeline, setup: Setup, number: int, settings: EngineSettings) -> None:
        self.number, self.address = number, f"engine-{number}:50053"
        self._timeline, self._setup, self._settings = timeline, setup, settings
        self.watchers: list[Watcher] = []
        self._rng = random.Random(f"{setup.jitter_seed} {number}")
        #: Changes with each start, as an instance's id.
        self.life = 0
        self.is_up = True
        #: Integral of the sequences that run or wait over time, and steps beyond the measured grid.
        self.sequence_seconds = 0.0
        self.num_steps = self.num_step_tokens = self.num_steps_off_grid = 0
        self.num_preemptions = self.num_queries = self.num_hits = self.num_evictions = 0
        self.busy_s = 0.0
        self._start()

    def _start(self) -> None:
        self.scheduler = new_scheduler(self._setup, self._settings)
        self.scheduler.kv_cache.pool.watch()
        self._requests: dict[str, Request] = {}
        self._owners: dict[str, Watcher] = {}
        self._commands: list[Callable[[], list[SequenceOutput]]] = []
        self._senders: set[Watcher] = set()
        self._noticed_s = float("-inf")
        self._is_running = False
        self._progress, self._arrivals = StepProgress(), Arrivals(self._timeline.clock)
        self._block_sequence = 1
        self._counted_s = self._timeline.now_s

    @property
    def instance_id(self) -> str:
        return f"{self.number}-{self.life}"

    @property
    def load(self) -> Load:
        """As the engine reports it."""
        return load_of(self.scheduler, self._progress, self._arrivals)

    @property
    def num_live(self) -> int:
        """Sequences that run or wait."""
        return self.scheduler.num_running + self.scheduler.num_waiting

    def submit(self, life: int, watcher: Watcher, message: engine_pb2.EngineRequest) -> None:
        """A request has arrived that was sent to this life of the engine. It is added between two steps."""
        if life != self.life or not self.is_up:
            return
        self._commands.append(lambda: self._add(watcher, message))
        if not self._senders:
            self._timeline.at(max(self._timeline.now_s, self._noticed_s + INTERVAL_S), self._notice, life)
        self._senders.add(watcher)
        if not self._is_running:
            self._is_running = True
            self._timeline.after(0.0, self._begin_step, self.life)

    def _notice(self, life: int) -> None:
        """As `ArrivalNotice` does."""
        if life != self.life or not self.is_up:
            return
        senders, self._senders, self._noticed_s = self._senders, set(), self._timeline.now_s
        load, num_queued = self.load, len(self._commands)
        load = replace(load, num_waiting=load.num_waiting + num_queued, num_recent=load.num_recent + num_queued)
        for watcher in self.watchers:
            if len(senders) > 1 or watcher not in senders:
                watcher.notice(load)

    def _add(self, watcher: Watcher, message: engine_pb2.EngineRequest) -> list[SequenceOutput]:
        (request,) = to_requests(message, MODEL, self.scheduler.kv_cache.capacity_tokens)
        self._owners[request.request_id] = watcher
        try:
            self.scheduler.add(request)
        except TriptychError as error:
            return self.scheduler.refuse(request, error)
        self._requests[request.request_id] = request
        self._arrivals.add()
        return []

    def _begin_step(self, life: int) -> None:
        if life != self.life or not self.is_up:
            return
        self._count_load()
        commands, self._commands = self._commands, []
        refused = [output for command in commands for output in command()]
        scheduled = self.scheduler.schedule()
        if failed := refused + self.scheduler.take_failed():
            self._publish(failed)
        if scheduled.is_empty:
            # With no step in flight, the real loop would spin here.
            if self.scheduler.has_work:
                raise AssertionError(f"engine {self.number} has work, but schedules none")
            self._is_running = False
            return
        seconds = 0.0
        if scheduled.num_scheduled_tokens:
            overheads = self._setup.overheads
            seconds = overheads.slowdown * self._step_s(scheduled) + overheads.shared_step_s
            self.num_steps += 1
            self.num_step_tokens += sum(scheduled.num_scheduled_tokens.values())
            grid = self._setup.grid
            is_off = scheduled.num_decoding > grid.max_decoding or scheduled.num_prompt_tokens > grid.max_prompt_tokens
            self.num_steps_off_grid += is_off
        self.busy_s += seconds
        self._timeline.after(seconds, self._end_step, life, scheduled, seconds)

    def _step_s(self, scheduled: SchedulerOutput) -> float:
        costs = self._setup.costs
        attention_s = sum(
            costs.attention_s(num_tokens, self._requests[request_id].num_scheduled_tokens - num_tokens)
            for request_id, num_tokens in scheduled.num_scheduled_tokens.items()
        )
        return costs.noise(self._rng) * (costs.step_s(scheduled.num_decoding, scheduled.num_prompt_tokens) + attention_s)

    def _end_step(self, life: int, scheduled: SchedulerOutput, seconds: float) -> None:
        if life != self.life or not self.is_up:
            return
        self._count_load()
        result = StepResult()
        for request_id in scheduled.max_new_tokens:
            tokens = self._requests[request_id].token_ids
            result.token_ids[request_id] = [next_token(tokens[-1], len(tokens))]
        outputs = self.scheduler.update_from_output(scheduled, result)
        self._publish(outputs)
        if seconds:
            self.scheduler.observe(scheduled, seconds)
        if self._setup.checks_every and self.num_steps % self._setup.checks_every == 0:
            self.scheduler.check_integrity()
        overheads = self._setup.overheads
        host_s = overheads.host_step_s + overheads.host_sequence_s * len(scheduled.num_scheduled_tokens)
        if self._commands or self.scheduler.has_work:
            self._timeline.after(host_s, self._begin_step, life)
        else:
            self._is_running = False

    def _publish(self, outputs: list[SequenceOutput]) -> None:
        own: dict[Watcher, list[SequenceOutput]] = {}
        for output in outputs:
            own.setdefault(self._owners[output.request_id], []).append(output)
            if output.finish_reason is not None:
                del self._owners[output.request_id]
                self._requests.pop(output.request_id, None)
        blocks, load = self._take_blocks(), self.load
        for watcher in self.watchers:
            if blocks is not None or not watcher.is_due or watcher in own:
                watcher.publish(own.get(watcher, []), load, blocks)

    def _take_blocks(self) -> Blocks | None:
        changes = self.scheduler.kv_cache.pool.take_changes()
        if changes is None:
            return None
        _, added, removed = changes
        self.num_evictions += len(removed)
        self._block_sequence += 1
        return Blocks(
            sequence=self._block_sequence,
            added=map(block_id, added),
            removed=map(block_id, removed),
            block_size=self.scheduler.kv_cache.block_size,
        )

    def snapshot(self) -> Blocks:
        """What WatchBlocks begins with."""
        _, held = self.scheduler.kv_cache.pool.watch()
        size = self.scheduler.kv_cache.block_size
        return Blocks(sequence=self._block_sequence, is_whole=True, added=map(block_id, held), block_size=size)

    def _count_load(self) -> None:
        self.sequence_seconds += self.num_live * (self._timeline.now_s - self._counted_s)
        self._counted_s = self._timeline.now_s

    def settle(self) -> None:
        """Add the counts of this life to those of the earlier ones."""
        self._count_load()
        cache = self.scheduler.kv_cache
        self.num_preemptions += self.scheduler.num_preemptions
        self.num_queries += cache.prefix_cache_queries
        self.num_hits += cache.prefix_cache_hits

    def lose(self) -> None:
        """The engine's process ends, with all that it holds."""
        self.settle()
        self.is_up = False
        self.life += 1

    def restart(self) -> None:
        """It begins again, with an empty cache."""
        self._start()
        self.is_up = True

    def check_is_empty(self) -> None:
        """Raise AssertionError unless all requests have ended, and all blocks are free."""
        self.scheduler.check_integrity()
        pool = self.scheduler.kv_cache.pool
        if self.num_live or self._owners or pool.num_free_blocks != pool.num_blocks:
            raise AssertionError(f"engine {self.number} still holds {self.num_live} requests at the end")


def next_token(last: int, num_tokens: int) -> int:
    """The token behind `num_tokens` tokens of which this is the last. Cheap, and different enough for block names to differ."""
    return FIRST_TOKEN + (last * 40503 + num_tokens * 2654435761) % (VOCABULARY - FIRST_TOKEN)


def new_scheduler(setup: Setup, settings: EngineSettings) -> Scheduler:
    """The scheduler that a real engine with simulated steps has."""
    info = ExecutorInfo(
        vocab_size=VOCABULARY,
        num_blocks=setup.num_blocks,
        block_size=settings.block_size,
        max_num_batched_tokens=settings.token_budget(on_cpu=True, generates=True),
        media_traits="a simulated engine takes no media",
        embedding_bytes=1,
        costs=setup.costs.steps,
    )
    return make_scheduler(settings, info, MODEL.max_model_len)
