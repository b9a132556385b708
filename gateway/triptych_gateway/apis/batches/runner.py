"""Takes the batches that nobody runs, and runs them."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from starlette.types import ASGIApp
from triptych.errors import InvalidRequestError, ModelNotFoundError, TriptychError
from triptych_common.batch.journal import BusyError, Journal, JournalError

from triptych_gateway.apis.batches.run import BatchRun, Host
from triptych_gateway.state import Gateway
from triptych_gateway.stores.batches import StoredBatch
from triptych_gateway.stores.opening import FileStores
from triptych_gateway.wire.errors import AccessDeniedError

log = logging.getLogger(__name__)
#: Time between two looks for batches of other gateways that have ended, in seconds. A new batch of this one is seen at once.
_LOOK_S = 2.0
#: Time between two sweeps of what has expired, in seconds.
_SWEEP_S = 600.0
#: Time until a batch that could not go on is run again, in seconds.
_PAUSE_S = 30.0
#: Batches that one gateway runs at once. Further ones wait; each takes memory for the custom_ids of its lines.
_MAX_RUNS = 32
#: Batches whose input is checked, or whose output is written, at once.
_MAX_PASSES = 2


class BatchRunner:
    """Runs batches as long as the gateway serves.

    Whoever has a batch's journal open runs it. The system closes the journal of a process that ends, however it ends.
    """

    def __init__(self, gateway: Gateway, stores: FileStores, app: ASGIApp) -> None:
        self._gateway, self._stores = gateway, stores
        shares = gateway.access.shares
        self._host = Host(gateway, stores, app, shares(gateway.settings.max_batch_requests), shares(_MAX_PASSES))
        self._places = gateway.access.shares(_MAX_RUNS)
        self._runs: dict[str, asyncio.Task[None]] = {}
        #: Batch -> time of the event loop before which it is not tried again.
        self._paused_s: dict[str, float] = {}
        self._woken = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        gateway.metrics.running_batches.set_function(lambda: len(self._runs))

    def start(self) -> None:
        """Begin, on the server's event loop."""
        self._loop = asyncio.create_task(self._run(), name="batches")

    def wake(self) -> None:
        """Look for batches now."""
        self._woken.set()

    async def close(self) -> None:
        """Stop. What was answered is kept; a batch that has not ended goes on in another process."""
        tasks = [task for task in (self._loop, *self._runs.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        swept_s = -_SWEEP_S
        while True:
            self._woken.clear()
            try:
                if clock() - swept_s >= _SWEEP_S:
                    swept_s = clock()
                    await self._stores.sweep()
                for batch in await self._stores.batches.live():
                    await self._take(batch)
            except (TriptychError, OSError) as error:
                log.warning("batches could not be looked for: %s", error)
            except Exception:
                # Without the loop, no batch would go on.
                log.exception("unexpected error while batches were looked for")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._woken.wait()

    async def _take(self, batch: StoredBatch) -> None:
        """Run a batch, unless somebody does, or it is not for this gateway."""
        is_paused = self._paused_s.get(batch.id, 0.0) > asyncio.get_running_loop().time()
        if batch.id in self._runs or is_paused or not await self._suits(batch) or not self._places.take(batch.tenant):
            return
        try:
            journal = await asyncio.to_thread(Journal, self._stores.batches.journal(batch.id))
        except JournalError as error:
            self._places.give_back(batch.tenant)
            if not isinstance(error, BusyError):
                self._pause(batch, error)
            return
        task = asyncio.create_task(self._run_one(batch, journal), name=batch.id)
        self._runs[batch.id] = task
        # A task that is cancelled before it runs would not close the journal.
        await asyncio.sleep(0)

    async def _suits(self, batch: StoredBatch) -> bool:
        """Whether this gateway answers the batch's owner, and its models. Several on one machine may have one directory."""
        try:
            if self._gateway.access.key_of(batch.key_id, batch.tenant) is None:
                return False
        except AccessDeniedError:
            return True  # it will fail
        if self._host.clock() >= batch.resource["expires_at"]:
            return True
        try:
            for model in batch.models:
                await self._gateway.models.check(model)
        except (ModelNotFoundError, InvalidRequestError):
            return False
        return True

    async def _run_one(self, batch: StoredBatch, journal: Journal) -> None:
        run: BatchRun | None = None
        try:
            # Whoever had the journal before may have ended the batch.
            now = await self._stores.batches.get(batch.tenant, batch.id)
            if now is None or not now.is_live:
                await asyncio.to_thread(self._stores.batches.journal(batch.id).unlink, missing_ok=True)
                return
            run = BatchRun(self._host, now, journal)
            log.info("%s runs: %s, %d lines are answered", batch.id, now.status, len(journal.done))
            await run.run()
            self._paused_s.pop(batch.id, None)
            log.info("%s has ended", batch.id)
        except (TriptychError, JournalError, OSError) as error:
            self._pause(batch, error)
        except Exception as error:
            log.exception("unexpected error in %s", batch.id)
            self._pause(batch, error)
        finally:
            if run is not None:
                await run.close()
            else:
                journal.close()
            del self._runs[batch.id]
            self._places.give_back(batch.tenant)
            self.wake()

    def _pause(self, batch: StoredBatch, error: Exception) -> None:
        log.warning("%s cannot go on, and is tried again in %g s: %s", batch.id, _PAUSE_S, error)
        self._paused_s[batch.id] = asyncio.get_running_loop().time() + _PAUSE_S
