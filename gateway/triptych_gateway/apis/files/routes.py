"""The routes of /v1/files."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Request, Response
from fastapi.responses import FileResponse
from triptych.errors import InvalidRequestError

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.apis.calls import known_query
from triptych_gateway.apis.files.form import read_file_form
from triptych_gateway.apis.files.schema import DeletedFile, FileForm, FileList, FileObject
from triptych_gateway.apis.files.service import file_form, file_of, new_file, no_file, ttl_of
from triptych_gateway.state import stores_of
from triptych_gateway.wire.errors import openapi_responses

router = AccessRouter(access=Access.KEY, tags=["Files"], responses=openapi_responses())
_ONE = "/v1/files/{file_id}"


@router.post("/v1/files", response_model=FileObject, openapi_extra=file_form(FileForm))
async def create_file(request: Request) -> FileObject:
    """Keep a file, whose id later requests and batches may have."""
    files, tenant = stores_of(request).files, request.state.principal.tenant
    async with files.arriving(tenant, "file") as arrival:
        form = await read_file_form(request, FileForm, arrival, files.max_file_bytes)
        file = new_file(tenant, form.file.name, form.purpose, arrival.num_bytes, ttl_of(form.purpose, form.expires_after))
        await files.add(file, arrival)
    return FileObject.of(file)


@router.get("/v1/files", dependencies=[known_query("after", "limit", "order", "purpose")])
async def list_files(
    request: Request,
    after: Annotated[str | None, Query(description="Begin after the file with this id.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    purpose: Annotated[str | None, Query(description="Only files with this purpose.")] = None,
) -> FileList:
    """The files, newest first."""
    files, tenant = stores_of(request).files, request.state.principal.tenant
    found = await files.page(tenant, purpose, after, limit, oldest_first=order == "asc")
    if found is None:
        raise InvalidRequestError(f"after: no file {(after or '')[:64]!r}", field="after")
    page = [FileObject.of(file) for file in found[:limit]]
    first_id, last_id = (page[0].id, page[-1].id) if page else (None, None)
    return FileList(data=page, has_more=len(found) > limit, first_id=first_id, last_id=last_id)


@router.get(_ONE, dependencies=[known_query()])
async def get_file(request: Request, file_id: str) -> FileObject:
    """What is known of a file."""
    return FileObject.of(await file_of(request, file_id))


@router.delete(_ONE, dependencies=[known_query()])
async def delete_file(request: Request, file_id: str) -> DeletedFile:
    """Delete a file. The input of a batch that has not ended is refused."""
    if not await stores_of(request).files.delete(request.state.principal.tenant, file_id):
        raise no_file(file_id)
    return DeletedFile(id=file_id)


@router.get(f"{_ONE}/content", response_class=Response, dependencies=[known_query()])
async def get_file_content(request: Request, file_id: str) -> Response:
    """The content of a file."""
    file = await file_of(request, file_id)
    # Never of a type that a browser would run.
    kind = "application/jsonl" if file.purpose.startswith("batch") else "application/octet-stream"
    headers = {"x-content-type-options": "nosniff"}
    path = stores_of(request).files.content(file)
    if not path.is_file():  # it was deleted meanwhile
        raise no_file(file_id)
    return FileResponse(path, media_type=kind, filename=file.filename, headers=headers)
