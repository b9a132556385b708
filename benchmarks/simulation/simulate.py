"""Runs a workload on a fleet in virtual time."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean

from triptych.errors import TriptychError
from triptych.v1 import engine_pb2
from triptych_engine.settings import EngineSettings

from benchmarks.simulation.engine import VirtualEngine
from benchmarks.simulation.figures import Limits, Record, summarize
from benchmarks.simulation.frontend import VirtualFrontend
from benchmarks.simulation.setup import Setup
from benchmarks.simulation.timeline import Timeline
from benchmarks.simulation.workload import Conversation


class _User:
    """One conversation. It listens to its own answers."""

    def __init__(self, run: Simulation, conversation: Conversation) -> None:
        self._run, self._conversation = run, conversation
        self._prompt = list(conversation.system)
        self._turn = 0
        self._frontend: VirtualFrontend | None = None
        self._record: Record | None = None

    def send(self) -> None:
        """The next message."""
        run, turn = self._run, self._conversation.turns[self._turn]
        self._prompt += turn.token_ids
        self._record = Record(self._conversation.number, self._turn, run.timeline.now_s, len(self._prompt))
        run.records.append(self._record)
        message = engine_pb2.EngineRequest(
            request_id=f"{self._conversation.number}.{self._turn}", prompt_token_ids=self._prompt, n=1
        )
        message.sampling.max_tokens, message.sampling.temperature, message.sampling.seed = turn.max_tokens, 0.0, 0
        message.sampling.ignore_eos = True
        # As the gateway: the frontend with the fewest calls.
        self._frontend = min(run.frontends, key=lambda frontend: frontend.num_live)
        self._frontend.num_live += 1
        run.num_live += 1
        run.most_live = max(run.most_live, run.num_live)
        run.timeline.after(run.request_s(), self._frontend.request, message, self)

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        assert self._record is not None
        self._record.got(self._run.timeline.now_s + self._run.setup.overheads.answer_s, len(output.token_ids))
        self._prompt += output.token_ids
        if output.finish_reason:
            self._end()

    def on_error(self, index: int, error: TriptychError) -> None:
        assert self._record is not None
        self._record.error = f"{type(error).__name__}: {error}"
        self._turn = len(self._conversation.turns) - 1  # the user gives up
        self._end()

    def _end(self) -> None:
        assert self._frontend is not None
        self._frontend.num_live -= 1
        self._run.num_live -= 1
        self._turn += 1
        self._run.num_ended += 1
        if self._turn < len(self._conversation.turns):
            pause_s = self._conversation.turns[self._turn].pause_s
            self._run.timeline.after(self._run.setup.overheads.answer_s + pause_s, self.send)


class Simulation:
    """A fleet, and users.

    Args:
        settings: of the engines; by default those of a real one.
    """

    def __init__(self, setup: Setup, settings: EngineSettings | None = None) -> None:
        self.setup, self.timeline = setup, Timeline()
        settings = settings or EngineSettings()
        self.engines = [VirtualEngine(self.timeline, setup, number, settings) for number in range(setup.num_engines)]
        self.frontends = [VirtualFrontend(self.timeline, setup, self.engines, number) for number in range(setup.num_frontends)]
        self.records: list[Record] = []
        self.num_live = self.most_live = self.num_ended = 0
        self._jitter = None if setup.jitter_seed is None else random.Random(setup.jitter_seed)
        for time_s, number in setup.losses:
            self.timeline.at(time_s, self._lose, number)

    def request_s(self) -> float:
        """How long a request takes to a frontend."""
        factor = 1.0 if self._jitter is None else self._jitter.uniform(0.5, 1.5)
        return factor * self.setup.overheads.request_s

    def _lose(self, number: int) -> None:
        engine, message_s = self.engines[number], self.setup.overheads.message_s
        engine.lose()
        for frontend in self.frontends:
            self.timeline.after(message_s, frontend.connections[number].lost)
        if self.setup.restart_s is not None:
            self.timeline.after(max(self.setup.restart_s, 2 * message_s), self._restart, number)

    def _restart(self, number: int) -> None:
        self.engines[number].restart()
        for frontend in self.frontends:
            frontend.connections[number].reconnected()
            frontend.pool.refresh()

    def run(self, conversations: Iterable[Conversation], limits: Limits = Limits()) -> dict:  # noqa: B008 - it is frozen
        """Let all conversations take place; returns their figures. Raises AssertionError if an invariant is broken."""
        with _errors_only():
            self._begin_next(iter(conversations))
            self.timeline.run()
        self._check()
        return self._figures(limits)

    def _begin_next(self, conversations: Iterable[Conversation]) -> None:
        """Add the next conversation, and itself again at its start: so not all of them are in memory at once."""
        iterator = iter(conversations)
        conversation = next(iterator, None)
        if conversation is not None:
            self.timeline.at(conversation.start_s, _User(self, conversation).send)
            self.timeline.at(conversation.start_s, self._begin_next, iterator)

    def _check(self) -> None:
        if self.num_ended != len(self.records) or self.num_live:
            raise AssertionError(f"{len(self.records)} requests began, {self.num_ended} ended, {self.num_live} are live")
        for engine in self.engines:
            if engine.is_up:
                engine.settle()
                engine.check_is_empty()
        for connection in (one for frontend in self.frontends for one in frontend.connections):
            if connection.carried or connection.num_pending_tokens:
                raise AssertionError(f"a frontend believes that {connection.address} still works")

    def _figures(self, limits: Limits) -> dict:
        engines, frontends = self.engines, self.frontends
        figures = summarize(self.records, sum(one.num_hits for one in engines), sum(one.num_queries for one in engines), limits)
        seconds = max(figures["seconds"], 1e-9)
        loads = [one.sequence_seconds / seconds for one in engines]
        return figures | {
            "max_by_mean_load": max(loads) / fmean(loads) if any(loads) else 1.0,
            "num_steps": sum(one.num_steps for one in engines),
            "step_tokens": sum(one.num_step_tokens for one in engines),
            "step_s": sum(one.busy_s for one in engines),
            "engine_busy": fmean(one.busy_s for one in engines) / seconds,
            "frontend_busy": max(one.busy_s for one in frontends) / seconds,
            "most_live": self.most_live,
            "off_grid": sum(one.num_steps_off_grid for one in engines) / max(1, sum(one.num_steps for one in engines)),
            "num_preemptions": sum(one.num_preemptions for one in engines),
            "num_evictions": sum(one.num_evictions for one in engines),
            "num_moved": moved(frontends),
            "num_events": self.timeline.num_events,
        }


@contextmanager
def _errors_only() -> Iterator[None]:
    """Engines that are lost on purpose would fill the log with warnings."""
    loggers = [logging.getLogger(name) for name in ("triptych_common", "triptych_engine", "triptych_frontend")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def moved(frontends: Sequence[VirtualFrontend]) -> int:
    """Sequences that went on at another engine."""
    return sum(sum(frontend.router.num_moved.values()) for frontend in frontends)
