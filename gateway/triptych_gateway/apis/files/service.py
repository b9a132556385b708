"""What the routes of files and uploads share."""

from __future__ import annotations

import time

from fastapi import Request

from triptych_gateway.state import stores_of
from triptych_gateway.stores.files import StoredFile, new_id
from triptych_gateway.wire.errors import NotFoundError
from triptych_gateway.wire.schema import ExpiresAfter, Schema

#: Files of requests are deleted after this time, unless the client says otherwise, in seconds.
BATCH_FILE_TTL_S = 30 * 86400


def file_form(schema: type[Schema]) -> dict[str, object]:
    """The body of a route that reads a form by itself, for the OpenAPI document."""
    described = schema.model_json_schema(ref_template="#/components/schemas/{model}")
    # The bodies of other routes bring the objects in it into the document.
    described.pop("$defs", None)
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": described}}}}


async def file_of(request: Request, file_id: str) -> StoredFile:
    """A file of the caller. Raises NotFoundError."""
    file = await stores_of(request).files.get(request.state.principal.tenant, file_id)
    if file is None:
        raise no_file(file_id)
    return file


def no_file(file_id: str) -> NotFoundError:
    """The answer for a file that is not the caller's, or not there."""
    return NotFoundError(f"no file {file_id[:64]!r}", field="file_id")


def ttl_of(purpose: str, expires_after: ExpiresAfter | None) -> int | None:
    """How long a file is kept, in seconds; None until it is deleted."""
    if expires_after is not None:
        return expires_after.seconds
    return BATCH_FILE_TTL_S if purpose == "batch" else None


def new_file(tenant: str, filename: str, purpose: str, num_bytes: int, ttl_s: int | None) -> StoredFile:
    """The record of a file that is made now."""
    now = int(time.time())
    return StoredFile(new_id("file-"), tenant, filename, purpose, num_bytes, now, None if ttl_s is None else now + ttl_s)
