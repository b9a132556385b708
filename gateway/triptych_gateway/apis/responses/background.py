"""Responses that are made in the background: they go on when their client has its answer, or is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import orjson
from triptych.errors import InvalidRequestError, ServiceUnavailableError, TriptychError
from triptych_common.host.fair_share import FairShare
from triptych_common.telemetry.tracing import request_span_var

from triptych_gateway.apis.responses.events import ResponseWriter
from triptych_gateway.apis.responses.history import ResponseHistory, ResponseInput, ended_record
from triptych_gateway.redaction import redacted
from triptych_gateway.stores.store import StoredResponse, wall_clock
from triptych_gateway.wire.errors import ApiError, ShareExceededError, to_api_error
from triptych_gateway.wire.sse import DONE, event, split_events

log = logging.getLogger(__name__)
#: A live response whose gateway has not written to the store for this time has failed, in seconds.
LEASE_S = 60.0


@dataclass
class Run:
    """One response in the background."""

    response_input: ResponseInput
    writer: ResponseWriter
    #: Makes the response. It does not run before it is read.
    events: AsyncGenerator[bytes, None]
    #: Called once, when the request's memory is no longer needed.
    release: Callable[[], None]
    #: Whether the client may read the events.
    is_streamed: bool
    #: The events so far; an event's index is its sequence number.
    log: list[bytes] = field(default_factory=list)
    is_ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def failure(self, error: ApiError) -> bytes:
        """Events for a client that follows, if its stream must end before the run does."""
        fields = {"code": error.code, "message": error.message, "param": error.param}
        return event("error", sequence_number=len(self.log), **fields) + DONE

    def note(self, written: bytes) -> None:
        """Append events and wake those who follow."""
        if self.is_streamed:
            self.log += split_events(written)
        self.changed.set()
        self.changed = asyncio.Event()

    async def follow(self, after: int) -> AsyncGenerator[bytes, None]:
        """The events with a higher sequence number, as they come, to the end."""
        # So that the HTTP headers are sent now, and not with the next event.
        yield b""
        position = after + 1
        while True:
            changed = self.changed
            if position < len(self.log):
                written = b"".join(self.log[position:])
                position = len(self.log)
                yield written
            elif self.is_ended:
                return
            else:
                await changed.wait()


class Background:
    """All responses that this gateway makes in the background.

    Args:
        shares: how many each tenant may have. Further ones are refused.
        on_failure: called for each response that fails.
    """

    def __init__(self, history: ResponseHistory, shares: FairShare, on_failure: Callable[[ApiError], None]) -> None:
        self._history, self._shares, self._on_failure = history, shares, on_failure
        self.runs: dict[str, Run] = {}
        history.own_live = self.runs
        self._renewing: asyncio.Task[None] | None = None

    async def start(self, run: Run) -> None:
        """Store the response as queued, and begin to make it.

        Raises:
            ShareExceededError: there are too many, or too many of this tenant.
            ServiceUnavailableError: the store is away.
        """
        tenant, shares = run.response_input.tenant, self._shares
        if not shares.take(tenant):
            run.release()
            limit = shares.share(tenant)
            message = f"{shares.used_by(tenant)} of your responses run in the background, and {shares.used} of all; try again later"
            used = shares.used_by(tenant)
            raise ShareExceededError("background_responses", message, limit=limit, value=used, retry_after_s=10.0)
        release = run.release

        def release_all() -> None:
            shares.give_back(tenant)
            release()

        run.release = release_all
        response_id = run.response_input.response_id
        self.runs[response_id] = run
        try:
            run.note(run.writer.queued())
            await self._history.store.put(self._record(run))
        except BaseException:
            del self.runs[response_id]
            run.release()
            raise
        run.task = asyncio.create_task(self._make(run), name=f"background {response_id}")
        # A task that is cancelled before it runs would not write how it ended.
        await asyncio.sleep(0)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew(), name="background leases")

    async def cancel(self, record: StoredResponse) -> StoredResponse:
        """Cancel a response. One that has ended stays as it is.

        Raises:
            InvalidRequestError: the response was not made in the background.
        """
        resource = orjson.loads(record.response)
        if not resource["background"]:
            raise InvalidRequestError("only a response that was created with background: true can be cancelled")
        if not record.is_live:
            return record
        run = self.runs.get(record.id)
        if run is not None and run.task is not None:
            # One that has ended is being stored. To cancel it again would lose its end.
            if not run.writer.is_finished:
                run.task.cancel()
            await asyncio.wait({run.task})
        else:
            # Another gateway works on it. It notices when it renews its lease.
            await self._history.store.replace(ended_record(record, resource | {"status": "cancelled"}))
        return await self._history.get(record.tenant, record.id)

    async def close(self, grace_s: float, stopping: asyncio.Future[None]) -> None:
        """Wait until all have ended, at most `grace_s`, and not longer than until the gateway must stop. Then fail the others."""
        tasks = {run.task for run in self.runs.values() if run.task is not None}
        if tasks:
            ended = asyncio.gather(*tasks, return_exceptions=True)
            waited: set[asyncio.Future[Any]] = {ended, stopping}
            await asyncio.wait(waited, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            error = to_api_error(ServiceUnavailableError("the gateway was stopped"))
            for run in self.runs.values():
                if run.task is not None and not run.writer.is_finished:
                    run.writer.fail(error)
                    self._on_failure(error)
                    run.task.cancel()
            await asyncio.wait(tasks)
        if self._renewing is not None:
            self._renewing.cancel()

    async def _make(self, run: Run) -> None:
        # The span of the request that started it has ended.
        request_span_var.set(None)
        writer = run.writer
        try:
            run.note(writer.opening(1))
            if not await self._history.store.replace(self._record(run)):
                raise asyncio.CancelledError  # it was cancelled or deleted before it began
            async with aclosing(run.events) as events:
                async for written in events:
                    if not writer.is_finished:
                        run.note(written)
                        continue
                    await self._finish(run, written)
        except asyncio.CancelledError:
            # A failed one was cancelled because the gateway stops.
            failed = writer.is_finished
            await self._finish(run, b"" if failed else writer.cancel())
        except Exception as error:
            level = logging.INFO if isinstance(error, TriptychError) else logging.ERROR
            log.log(level, "a background response failed: %s", redacted(str(error)))
            api_error = to_api_error(error)
            self._on_failure(api_error)
            await self._finish(run, writer.failure(api_error))
        finally:
            run.is_ended = True
            run.note(b"")
            run.release()
            self.runs.pop(run.response_input.response_id, None)

    async def _finish(self, run: Run, written: bytes) -> None:
        """Store the end of a response, then show its last events."""
        events = b"".join(run.log) + written if run.is_streamed else b""
        if len(events) > self._history.max_bytes:
            events = b""
        try:
            await self._history.store.replace(run.response_input.record(run.writer.resource, events))
        except TriptychError as error:
            log.warning("the end of a background response could not be stored: %s", error)
        run.note(written)

    async def _renew(self) -> None:
        """Renew the leases of all runs, and end those that another gateway has cancelled, or that were deleted."""
        while self.runs:
            await asyncio.sleep(LEASE_S / 3)
            for run in list(self.runs.values()):
                try:
                    is_ours = await self._history.store.replace(self._record(run))
                except TriptychError as error:
                    log.warning("the lease of a background response could not be renewed: %s", error)
                    continue
                if not is_ours and not run.writer.is_finished and run.task is not None:
                    run.task.cancel()

    def _record(self, run: Run) -> StoredResponse:
        return run.response_input.record(run.writer.resource, live_until_s=wall_clock() + LEASE_S)
