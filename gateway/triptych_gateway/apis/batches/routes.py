"""The routes of /v1/batches."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import Query, Request
from triptych.errors import InvalidRequestError

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.apis.batches.runner import BatchRunner
from triptych_gateway.apis.batches.schema import WINDOWS, BatchList, BatchObject, BatchRequest
from triptych_gateway.apis.calls import known_query
from triptych_gateway.apis.json_body import JsonRoute
from triptych_gateway.state import grant_of, stores_of
from triptych_gateway.stores.batches import BATCH_TTL_S, StoredBatch
from triptych_gateway.stores.files import new_id
from triptych_gateway.wire.errors import NotFoundError, ShareExceededError, openapi_responses

#: Batches of a tenant that have not ended.
MAX_LIVE = 100
_RETRY_AFTER_S = 60.0
router = AccessRouter(access=Access.KEY, tags=["Batches"], route_class=JsonRoute, responses=openapi_responses())
_ONE = "/v1/batches/{batch_id}"


@router.post("/v1/batches")
async def create_batch(request: Request, body: BatchRequest) -> BatchObject:
    """Answer the requests of a file, behind all other requests. The input is checked first."""
    stores, tenant = stores_of(request), request.state.principal.tenant
    field = "input_file_id"
    file = await stores.files.get(tenant, body.input_file_id)
    if file is None:
        raise NotFoundError(f"{field}: no file {body.input_file_id!r}", field=field)
    if file.purpose != "batch":
        raise InvalidRequestError(f"{field}: the purpose of this file is {file.purpose}; it must be batch", field=field)
    now = int(time.time())
    batch = BatchObject(
        id=new_id("batch_"),
        endpoint=body.endpoint,
        input_file_id=file.id,
        completion_window=body.completion_window,
        status="validating",
        created_at=now,
        expires_at=now + WINDOWS[body.completion_window],
        metadata=body.metadata,
    )
    output_ttl_s = body.output_expires_after.seconds if body.output_expires_after is not None else BATCH_TTL_S
    stored = StoredBatch(batch.id, tenant, grant_of(request).key.id, file.id, output_ttl_s, now, batch.model_dump())
    num_live = await stores.batches.add(stored, MAX_LIVE)
    if num_live is not None:
        message = f"{num_live} of your batches have not ended; try again when one has"
        raise ShareExceededError("batches", message, limit=MAX_LIVE, value=num_live, retry_after_s=_RETRY_AFTER_S)
    runner: BatchRunner = request.app.state.batches
    runner.wake()
    return batch


@router.get("/v1/batches", dependencies=[known_query("after", "limit")])
async def list_batches(
    request: Request,
    after: Annotated[str | None, Query(description="Begin after the batch with this id.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> BatchList:
    """The batches, newest first."""
    found = await stores_of(request).batches.page(request.state.principal.tenant, after, limit)
    if found is None:
        raise InvalidRequestError(f"after: no batch {(after or '')[:64]!r}", field="after")
    page = [_object(batch) for batch in found[:limit]]
    first_id, last_id = (page[0].id, page[-1].id) if page else (None, None)
    return BatchList(data=page, has_more=len(found) > limit, first_id=first_id, last_id=last_id)


@router.get(_ONE, dependencies=[known_query()])
async def get_batch(request: Request, batch_id: str) -> BatchObject:
    """A batch, and how far it is."""
    return _object(await _batch(request, batch_id))


@router.post(f"{_ONE}/cancel", dependencies=[known_query()])
async def cancel_batch(request: Request, batch_id: str) -> BatchObject:
    """Cancel a batch. What was answered is in its output. One that is being cancelled is returned as it is."""
    batch, stores, now = await _batch(request, batch_id), stores_of(request), int(time.time())

    def cancelled(resource: dict[str, Any]) -> dict[str, Any] | None:
        if resource["status"] not in ("validating", "in_progress"):
            return None
        return resource | {"status": "cancelling", "cancelling_at": now}

    changed = await stores.batches.update(batch.id, cancelled) or batch
    if changed.status not in ("cancelling", "cancelled"):
        raise InvalidRequestError(f"batch_id: a batch that is {changed.status} cannot be cancelled", field="batch_id")
    runner: BatchRunner = request.app.state.batches
    runner.wake()
    return _object(changed)


async def _batch(request: Request, batch_id: str) -> StoredBatch:
    """A batch of the caller. Raises NotFoundError."""
    batch = await stores_of(request).batches.get(request.state.principal.tenant, batch_id)
    if batch is None:
        raise NotFoundError(f"no batch {batch_id[:64]!r}", field="batch_id")
    return batch


def _object(batch: StoredBatch) -> BatchObject:
    return BatchObject.model_validate(batch.resource)
