"""Requests whose constraint is being compiled, or whose adapter is being loaded. They have their routes, but the step loop does not
know them yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from triptych.errors import InternalError, TriptychError
from triptych_common.model.blocks import adapter_salt

from triptych_engine.core import EngineCore
from triptych_engine.rpc.outbox import Outbox
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import FinishReason, Request

log = logging.getLogger(__name__)


class BlockSource(Protocol):
    """Where blocks of prompts may be, beside the KV cache and the second tier."""

    def wants(self, request: Request, source: str) -> bool:
        """Whether `fetch` would find anything to do."""
        ...

    async def fetch(self, request: Request, source: str) -> None:
        """Fetch what is missing of its prefix. `source`: instance id of an engine that has computed it, or empty."""
        ...


class Preparation:
    """Passes requests to the step loop when all that they need is there. All methods are called on the event loop.

    Args:
        on_lora: called with the name and the digest of each adapter that was loaded.
    """

    def __init__(self, outbox: Outbox, on_lora: Callable[[str, str], None] = lambda name, digest: None) -> None:
        self._outbox, self._on_lora = outbox, on_lora
        #: Fetches blocks of prompts that are neither in the KV cache nor in the second tier; None: they are computed.
        self.blocks: BlockSource | None = None
        self._waiting: dict[str, Request] = {}  # by the engine's id of a sequence
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, core: EngineCore, requests: Sequence[Request], kv_source: str = "") -> None:
        """Add the sequences of one request to the core, at once if they need no preparation. Each gets a last output anyway.

        Args:
            kv_source: instance id of an engine that has computed the prompt.
        """
        constraint, lora = requests[0].sampling.constraint, requests[0].lora
        needed: list[Future[Any]] = []
        try:
            if constraint is not None:
                needed.append(core.compile_constraint(constraint.spec))
            if lora:
                needed.append(core.load_lora(lora))
        except TriptychError as error:  # e.g. the model was unloaded a moment ago
            self._end(core, requests, FinishReason.ERROR, error)
            return
        if all(one.done() and one.exception() is None for one in needed):
            self._name_adapter(requests, needed)
            if self.blocks is None or not self.blocks.wants(requests[0], kv_source):
                self._add_now(core, requests, needed)
                return
        self._waiting.update((request.request_id, request) for request in requests)
        task = asyncio.get_running_loop().create_task(self._add_when_ready(core, requests, needed, kv_source))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def abort(self, core: EngineCore, sequence_ids: Iterable[str]) -> list[str]:
        """End those sequences that still wait here. Returns their ids."""
        waiting = [sequence_id for sequence_id in sequence_ids if sequence_id in self._waiting]
        self._end(core, [self._waiting.pop(sequence_id) for sequence_id in waiting], FinishReason.ABORT, None)
        return waiting

    async def _add_when_ready(
        self, core: EngineCore, requests: Sequence[Request], needed: Sequence[Future[Any]], kv_source: str
    ) -> None:
        error: TriptychError | None = None
        try:
            for one in needed:
                await asyncio.shield(asyncio.wrap_future(one))
            self._name_adapter(requests, needed)
            if self.blocks is not None:
                await self.blocks.fetch(requests[0], kv_source)
        except TriptychError as refusal:
            error = refusal
        except Exception as failure:
            log.exception("a request could not be prepared")
            what = "the adapter could not be loaded" if requests[0].lora else "the constraint could not be compiled"
            error = InternalError(f"{what} ({type(failure).__name__}); the engine's log has the details")
        left = [request for request in requests if self._waiting.get(request.request_id) is request]
        for request in left:
            del self._waiting[request.request_id]
        if error is None:
            self._add_now(core, left, needed)
        else:
            self._end(core, left, FinishReason.ERROR, error)

    def _add_now(self, core: EngineCore, requests: Sequence[Request], prepared: Sequence[Future[Any]]) -> None:
        for request in requests:
            request.prepared = prepared
            core.add(request)

    def _name_adapter(self, requests: Sequence[Request], prepared: Sequence[Future[Any]]) -> None:
        """Give requests the digest of their adapter, unless they have it."""
        if requests and (lora := requests[0].lora) and not requests[0].lora_digest:
            digest = prepared[-1].result().digest
            self._on_lora(lora, digest)
            for request in requests:
                request.lora_digest, request.cache_salt = digest, adapter_salt(request.cache_salt, digest)

    def _end(self, core: EngineCore, requests: Sequence[Request], reason: FinishReason, error: TriptychError | None) -> None:
        outputs = [
            SequenceOutput(request.request_id, finish_reason=reason, error=error, usage=(request.num_prompt_tokens, 0, 0))
            for request in requests
        ]
        if outputs:
            self._outbox.publish(0, outputs, core.load)
