"""Runs one batch: checks its input, answers its lines, writes its output."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp
from triptych.errors import InvalidRequestError, ModelNotFoundError, ServiceUnavailableError
from triptych_common.batch.journal import Journal, output_line
from triptych_common.batch.lines import Line
from triptych_common.batch.retries import Retries
from triptych_common.host.fair_share import FairShare

from triptych_gateway.access.key_ring import Key
from triptych_gateway.apis.batches.checking import Checked, check_lines, checked_lines
from triptych_gateway.apis.batches.output import Written, write_output
from triptych_gateway.apis.batches.own_requests import OwnAnswer, behind_others, post
from triptych_gateway.apis.batches.schema import BatchError
from triptych_gateway.frontends.models import visible_models_var
from triptych_gateway.state import Gateway
from triptych_gateway.stores.batches import StoredBatch
from triptych_gateway.stores.files import StoredFile, new_id
from triptych_gateway.stores.opening import FileStores
from triptych_gateway.wire.errors import AccessDeniedError

#: Time between two looks at what others did to the batch, in which the counts are told as well, in seconds.
WATCH_S = 1.0
#: A service that is away is waited for as long as the batch has time.
_AWAY = frozenset({503})
#: Requests of a batch at once, as a part of those that its key may have at once: the rest is for its owner.
_KEY_PART = 2
_KEY_REFUSED = "the API key that made this batch is no longer accepted"
Resource = dict[str, Any]


@dataclass(frozen=True)
class Host:
    """What all runs of a gateway share."""

    gateway: Gateway
    stores: FileStores
    #: The application that answers the lines.
    app: ASGIApp
    #: The right to have a line answered.
    slots: FairShare
    #: The right to read or write whole files, for which threads are borrowed that other requests need, too.
    passes: FairShare
    clock: Callable[[], float] = time.time


class BatchRun:
    """One batch, which this gateway runs as long as it has the journal.

    Args:
        journal: open. Its answers are those of the lines that earlier runs have done.
    """

    def __init__(self, host: Host, batch: StoredBatch, journal: Journal) -> None:
        self._host, self._batch, self._journal = host, batch, journal
        self._source = host.stores.disk.content(batch.input_file_id)
        #: Answers are written one by one, and whole also if their task is cancelled meanwhile.
        self._writer = ThreadPoolExecutor(1, "journal")

    async def run(self) -> None:
        """Bring the batch to its end.

        Raises:
            TriptychError: the store is away; the batch can be run again.
            JournalError, OSError: the disk is full; the same.
        """
        if self._batch.status == "validating":
            await self._check()
        if not self._batch.is_live:
            return
        end = "cancelled"
        if self._batch.status != "cancelling":
            try:
                end = await self._answer_in_time()
            except AccessDeniedError:
                end = "failed"
        await self._finish(end)

    async def close(self) -> None:
        """Release the journal. Another run may take it then. That of a batch that has ended is removed."""
        await asyncio.to_thread(self._writer.shutdown)
        if not self._batch.is_live:
            await asyncio.to_thread(self._host.stores.batches.journal(self._batch.id).unlink, missing_ok=True)
        self._journal.close()

    # --- the input --------------------------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        """Check all lines. The batch has failed if one of them is wrong."""
        endpoint, max_line_bytes = self._batch.resource["endpoint"], self._host.gateway.settings.max_body_bytes
        async with self._host.passes.held(self._batch.tenant):
            checked = await asyncio.to_thread(check_lines, self._source, endpoint, max_line_bytes)
        await self._check_models(checked)
        now, errors = int(self._host.clock()), checked.all_errors()
        names = sorted(checked.models)

        def change(resource: Resource) -> Resource | None:
            if resource["status"] != "validating":
                return None
            resource["request_counts"] = {"total": checked.num_lines, "completed": 0, "failed": 0}
            if errors:
                data = [error.model_dump() for error in errors]
                return resource | {"status": "failed", "failed_at": now, "errors": {"object": "list", "data": data}}
            return resource | {"status": "in_progress", "in_progress_at": now, "model": names[0] if len(names) == 1 else None}

        # The models of a batch that has failed are of no use, and may be names of any length.
        await self._update(change, models=[] if errors else names)

    async def _check_models(self, checked: Checked) -> None:
        """Refuse the models that the key does not have, or that nobody serves. The answer does not tell which of both."""
        try:
            key = self._key()
        except AccessDeniedError:
            checked.refuse("invalid_api_key", _KEY_REFUSED)
            return
        visible_models_var.set(key.models)
        for model, number in checked.models.items():
            await asyncio.sleep(0)  # each line may name another one, and fifty thousand take a second
            message = f"this API key does not have access to the model {model[:100]!r}"
            try:
                if key.models is None or model in key.models:
                    await self._host.gateway.models.check(model)
                    continue
            except (ModelNotFoundError, InvalidRequestError) as error:
                message = error.message
            checked.refuse("model_not_found", f"line {number}: {message}", "body.model", number)

    # --- the answers ------------------------------------------------------------------------------------------------------------

    async def _answer_in_time(self) -> str:
        """Answer lines until all are done, the time is over, or the batch is cancelled. Returns which of these."""
        if len(self._journal.done) >= self._batch.resource["request_counts"]["total"]:
            return "completed"
        work = asyncio.create_task(self._answer_all(), name=f"{self._batch.id} lines")
        try:
            while not work.done():
                if self._batch.status == "cancelling":
                    return "cancelled"
                if self._host.clock() >= self._batch.resource["expires_at"]:
                    return "expired"
                await asyncio.wait({work}, timeout=WATCH_S)
                await self._update(self._with_counts)
            work.result()
            return "completed"
        except ExceptionGroup as group:
            # One line tells what all would.
            raise next(iter(_leaves(group))) from group
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            # What is being written is answered, too.
            await asyncio.get_running_loop().run_in_executor(self._writer, lambda: None)

    async def _answer_all(self) -> None:
        done, tenant, slots = self._journal.done, self._batch.tenant, self._host.slots
        lines = (line for line in checked_lines(self._source) if line.custom_id not in done)
        own_limit = asyncio.Semaphore(max(1, (self._key().max_concurrent_requests or 2**31) // _KEY_PART))

        def release(_: object = None) -> None:
            slots.give_back(tenant)
            own_limit.release()

        async with asyncio.TaskGroup() as group:
            while True:
                await own_limit.acquire()
                await slots.take_when_free(tenant)
                try:
                    # Only what is being answered is in memory.
                    line = await asyncio.to_thread(next, lines, None)
                except BaseException:
                    release()
                    raise
                if line is None:
                    release()
                    return
                group.create_task(self._answer(line)).add_done_callback(release)

    async def _answer(self, line: Line) -> None:
        answer = await self._final_answer(line.url, json.dumps(line.body).encode())

        def write() -> None:
            written = output_line(line.custom_id, answer.status, answer.request_id, _content(answer.body))
            self._journal.write(line.custom_id, answer.status, written)

        await asyncio.get_running_loop().run_in_executor(self._writer, write)

    async def _final_answer(self, path: str, body: bytes) -> OwnAnswer:
        retries = Retries(math.inf, _AWAY)
        while True:
            answer = await post(self._host.app, behind_others(self._key()), path, body)
            if not retries.again(answer.status):
                return answer
            await asyncio.sleep(retries.pause_s(answer.retry_after_s))

    def _key(self) -> Key:
        """The key of the batch as it is now. Raises AccessDeniedError if it is no longer accepted."""
        key = self._host.gateway.access.key_of(self._batch.key_id, self._batch.tenant)
        if key is None:
            raise ServiceUnavailableError("this gateway has other callers")
        return key

    # --- the end ----------------------------------------------------------------------------------------------------------------

    async def _finish(self, end: str) -> None:
        def begin(resource: Resource) -> Resource | None:
            if resource["status"] != "in_progress":
                return None
            return resource | {"status": "finalizing", "finalizing_at": int(self._host.clock())}

        await self._update(begin)
        if self._batch.status == "cancelling":
            end = "cancelled"
        disk, journal = self._host.stores.disk, self._host.stores.batches.journal(self._batch.id)
        # Lines that nobody has checked cannot be named.
        source = self._source if self._batch.resource["in_progress_at"] is not None else None
        done = frozenset(self._journal.done)
        async with disk.arriving() as output, disk.arriving() as errors:
            async with self._host.passes.held(self._batch.tenant):
                written = await asyncio.to_thread(write_output, journal, source, done, end, output, errors)
            kinds = {kind: arrival for kind, arrival in (("output", output), ("error", errors)) if arrival.num_bytes}
            files = {kind: self._file(kind, arrival.num_bytes) for kind, arrival in kinds.items()}
            changed = self._ended(end, written) | {f"{kind}_file_id": file.id for kind, file in files.items()}
            kept = [(file, kinds[kind]) for kind, file in files.items()]
            await self._update(lambda resource: resource | changed, files=kept)

    def _file(self, kind: str, num_bytes: int) -> StoredFile:
        now, name = int(self._host.clock()), f"{self._batch.id}_{kind}.jsonl"
        return StoredFile(new_id("file-"), self._batch.tenant, name, "batch_output", num_bytes, now, now + self._batch.output_ttl_s)

    def _ended(self, end: str, written: Written) -> Resource:
        """What the end changes in the batch's object."""
        counts = {"completed": written.num_completed, "failed": written.num_failed}
        changed: Resource = {"status": end, f"{end}_at": int(self._host.clock()), "usage": written.usage.model_dump()}
        if end == "failed":
            error = BatchError(code="invalid_api_key", message=_KEY_REFUSED, param=None, line=None)
            changed["errors"] = {"object": "list", "data": [error.model_dump()]}
        return changed | {"request_counts": {"total": self._batch.resource["request_counts"]["total"], **counts}}

    def _with_counts(self, resource: Resource) -> Resource | None:
        statuses = list(self._journal.done.values())
        num_failed = sum(status >= 400 for status in statuses)
        counts = {"completed": len(statuses) - num_failed, "failed": num_failed}
        told = {**resource["request_counts"], **counts}
        return None if told == resource["request_counts"] else resource | {"request_counts": told}

    async def _update(self, change: Callable[[Resource], Resource | None], **further: Any) -> None:
        batch = await self._host.stores.batches.update(self._batch.id, change, **further)
        if batch is not None:
            self._batch = batch


def _content(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def _leaves(group: ExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        yield from _leaves(error) if isinstance(error, ExceptionGroup) else (error,)
