"""The routes of /v1/uploads: a file in parts."""

from __future__ import annotations

import time

from fastapi import Request
from triptych.errors import InvalidRequestError

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.apis.calls import known_query
from triptych_gateway.apis.files.form import read_file_form
from triptych_gateway.apis.files.schema import (
    CompleteUploadRequest,
    FileObject,
    PartForm,
    UploadObject,
    UploadPart,
    UploadRequest,
)
from triptych_gateway.apis.files.service import file_form, new_file, ttl_of
from triptych_gateway.apis.json_body import JsonRoute
from triptych_gateway.state import gateway_of, stores_of
from triptych_gateway.stores.files import StoredFile, new_id
from triptych_gateway.stores.uploads import UPLOAD_TTL_S, StoredUpload, UploadStatus
from triptych_gateway.wire.errors import NotFoundError, openapi_responses

#: Size of the largest part.
MAX_PART_BYTES = 64 << 20
router = AccessRouter(access=Access.KEY, tags=["Files"], route_class=JsonRoute, responses=openapi_responses())
#: Parts are larger than other bodies, and do not stay in memory.
parts_router = AccessRouter(access=Access.KEY, tags=["Files"], responses=openapi_responses())
_ONE = "/v1/uploads/{upload_id}"


@router.post("/v1/uploads")
async def create_upload(request: Request, body: UploadRequest) -> UploadObject:
    """Announce a file that comes in parts. It must be complete within an hour."""
    stores = stores_of(request)
    if body.bytes > (limit := stores.files.max_file_bytes):
        raise InvalidRequestError(f"bytes: at most {limit} are kept (max_file_bytes)", field="bytes", limit=limit, value=body.bytes)
    now = int(time.time())
    upload = StoredUpload(
        new_id("upload_"),
        request.state.principal.tenant,
        body.filename,
        body.purpose,
        body.bytes,
        now,
        now + UPLOAD_TTL_S,
        ttl_of(body.purpose, body.expires_after),
        "pending",
    )
    await stores.uploads.add(upload)
    return _object(upload, "pending")


@parts_router.post(f"{_ONE}/parts", response_model=UploadPart, openapi_extra=file_form(PartForm), dependencies=[known_query()])
async def add_upload_part(request: Request, upload_id: str) -> UploadPart:
    """Add a part. Parts may come at the same time."""
    stores, upload = stores_of(request), await _upload(request, upload_id)
    async with stores.files.arriving(upload.tenant, "data") as arrival:
        await read_file_form(request, PartForm, arrival, MAX_PART_BYTES)
        part_id = new_id("part_")
        await stores.uploads.add_part(upload, part_id, arrival)
    return UploadPart(id=part_id, created_at=int(time.time()), upload_id=upload.id)


@router.post(f"{_ONE}/complete")
async def complete_upload(request: Request, upload_id: str, body: CompleteUploadRequest) -> UploadObject:
    """Make the file of the parts, in the order that is given."""
    upload = await _upload(request, upload_id)
    file = new_file(upload.tenant, upload.filename, upload.purpose, upload.num_bytes, upload.file_ttl_s)
    async with gateway_of(request).joins.held(upload.tenant):
        await stores_of(request).uploads.complete(upload, body.part_ids, body.md5, file)
    return _object(upload, "completed", file)


@router.post(f"{_ONE}/cancel", dependencies=[known_query()])
async def cancel_upload(request: Request, upload_id: str) -> UploadObject:
    """Cancel an upload. Its parts are deleted."""
    upload = await _upload(request, upload_id)
    await stores_of(request).uploads.cancel(upload)
    return _object(upload, "cancelled")


async def _upload(request: Request, upload_id: str) -> StoredUpload:
    """An upload of the caller. Raises NotFoundError."""
    upload = await stores_of(request).uploads.get(request.state.principal.tenant, upload_id)
    if upload is None:
        raise NotFoundError(f"no upload {upload_id[:64]!r}", field="upload_id")
    return upload


def _object(upload: StoredUpload, status: UploadStatus, file: StoredFile | None = None) -> UploadObject:
    return UploadObject(
        id=upload.id,
        bytes=upload.num_bytes,
        created_at=upload.created_s,
        expires_at=upload.expires_s,
        filename=upload.filename,
        purpose=upload.purpose,
        status=status,
        file=None if file is None else FileObject.of(file),
    )
