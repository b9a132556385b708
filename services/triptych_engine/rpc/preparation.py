"""Requests whose constraint is being compiled. They have their routes, but the step loop does not know them yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from triptych.errors import InternalError, TriptychError

from triptych_engine.core import EngineCore
from triptych_engine.rpc.outbox import Outbox
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import FinishReason, Request

log = logging.getLogger(__name__)


class Preparation:
    """Passes requests to the step loop when their constraints are compiled. All methods are called on the event loop."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._waiting: dict[str, Request] = {}  # by the engine's id of a sequence
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, core: EngineCore, requests: Sequence[Request]) -> None:
        """Add the sequences of one request to the core, at once if they need no preparation. Each gets a last output anyway."""
        constraint = requests[0].sampling.constraint
        if constraint is None:
            self._add_now(core, requests, None)
            return
        compiled = core.compile_constraint(constraint.spec)
        if compiled.done() and compiled.exception() is None:
            self._add_now(core, requests, compiled)
            return
        self._waiting.update((request.request_id, request) for request in requests)
        task = asyncio.get_running_loop().create_task(self._add_when_ready(core, requests, compiled))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def abort(self, core: EngineCore, sequence_ids: Iterable[str]) -> list[str]:
        """End those sequences that still wait here. Returns their ids."""
        waiting = [sequence_id for sequence_id in sequence_ids if sequence_id in self._waiting]
        self._end(core, [self._waiting.pop(sequence_id) for sequence_id in waiting], FinishReason.ABORT, None)
        return waiting

    async def _add_when_ready(self, core: EngineCore, requests: Sequence[Request], compiled: Future[Any]) -> None:
        error: TriptychError | None = None
        try:
            await asyncio.shield(asyncio.wrap_future(compiled))
        except TriptychError as refusal:
            error = refusal
        except Exception as failure:
            log.exception("a constraint could not be compiled")
            error = InternalError(
                f"the constraint could not be compiled ({type(failure).__name__}); the engine's log has the details"
            )
        left = [request for request in requests if self._waiting.get(request.request_id) is request]
        for request in left:
            del self._waiting[request.request_id]
        if error is None:
            self._add_now(core, left, compiled)
        else:
            self._end(core, left, FinishReason.ERROR, error)

    @staticmethod
    def _add_now(core: EngineCore, requests: Sequence[Request], prepared: object) -> None:
        for request in requests:
            request.prepared = prepared
            core.add(request)

    def _end(self, core: EngineCore, requests: Sequence[Request], reason: FinishReason, error: TriptychError | None) -> None:
        outputs = [
            SequenceOutput(request.request_id, finish_reason=reason, error=error, usage=(request.num_prompt_tokens, 0, 0))
            for request in requests
        ]
        if outputs:
            self._outbox.publish(0, outputs, core.load)
