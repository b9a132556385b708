"""The routes of /v1/responses: making responses, reading and deleting those that are stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

import orjson
from fastapi import Query, Request, Response
from triptych.errors import InvalidRequestError

from triptych_gateway.access.control import audited
from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.apis.calls import generate, known_query, preprocess, responses
from triptych_gateway.apis.file_inputs import FileLoader
from triptych_gateway.apis.json_body import JsonRoute, files_of
from triptych_gateway.apis.responses.background import Run
from triptych_gateway.apis.responses.compaction import compacted, summary_request, with_task
from triptych_gateway.apis.responses.request import convert
from triptych_gateway.apis.responses.resource import CompactedResponse, DeletedResponse, ItemList, ResponseObject
from triptych_gateway.apis.responses.schema import CompactRequest, InputTokens, InputTokensRequest, ResponseRequest
from triptych_gateway.apis.responses.service import response_call, responses_of
from triptych_gateway.apis.responses.websocket import serve
from triptych_gateway.generation.http import EventStreamResponse, WholeResponse
from triptych_gateway.state import gateway_of, grant_of, request_id_of
from triptych_gateway.stores.store import StoredResponse
from triptych_gateway.wire.contract import ConvertedChat
from triptych_gateway.wire.errors import openapi_responses
from triptych_gateway.wire.sse import split_events

router = AccessRouter(access=Access.KEY, tags=["OpenAI"], route_class=JsonRoute)
# Not FastAPI's decorator: the security dependency of the OpenAPI document is for HTTP. The middleware checks the key here, too.
router.add_websocket_route("/v1/responses", serve)
_EVENTS = "One response object; or, when stream is true, server-sent events, and data: [DONE] at the end."
_ONE = "/v1/responses/{response_id}"
Include = Annotated[list[str] | None, Query(description="Changes nothing: items are always sent whole.")]


@router.post("/v1/responses", response_class=Response, responses=responses(ResponseObject, _EVENTS))
async def create_response(request: Request, body: ResponseRequest) -> Response:
    """Answer items with items."""
    history, background, stopping = responses_of(request).history, responses_of(request).background, gateway_of(request).stopping
    parts = files_of(request)
    response_input = await history.begin(request.state.principal.tenant, body, parts)
    # What a cancelled run has made must be known, if its key pays for it.
    is_streamed = bool(body.stream) or (bool(body.background) and grant_of(request).counts_tokens)
    call, writer = await response_call(
        body, response_input, parts, request_id_of(request), FileLoader.of(request), is_streamed=is_streamed
    )
    generation, release = await generate(request, call)
    if body.background:
        run = Run(response_input, writer, generation.events(), release, bool(body.stream))
        run.release = _kept(request, run)
        await background.start(run)
        if not body.stream:
            return Response(writer.json(), media_type="application/json")
        return EventStreamResponse(run.follow(-1), run.failure, stopping, lambda: None)
    if body.stream:
        events = history.kept_events(generation.events(), response_input, writer)
        return EventStreamResponse(events, writer.failure, stopping, release)
    return WholeResponse(history.kept_whole(generation.whole(), response_input, writer), stopping, release)


@router.post("/v1/responses/compact", response_class=Response, responses={200: {"model": CompactedResponse}, **openapi_responses()})
async def compact_response(request: Request, body: CompactRequest) -> Response:
    """Summarize a conversation. The item in the answer takes its place in later requests."""
    response_input = await responses_of(request).history.read(request.state.principal.tenant, body.input, body.previous_response_id)
    response_input = replace(response_input, items=with_task(response_input.items))
    call, writer = await response_call(
        summary_request(body),
        response_input,
        files_of(request),
        request_id_of(request),
        FileLoader.of(request),
        is_streamed=False,
    )
    generation, release = await generate(request, call)

    async def work() -> bytes:
        await generation.whole()
        return compacted(writer.resource)

    return WholeResponse(work(), gateway_of(request).stopping, release)


@router.post("/v1/responses/input_tokens", responses=openapi_responses())
async def count_input_tokens(request: Request, body: InputTokensRequest) -> InputTokens:
    """The number of tokens of a response's prompt, without making the response."""
    history, tenant = responses_of(request).history, request.state.principal.tenant

    async def converted() -> ConvertedChat:
        response_input = await history.read(tenant, body.input, body.previous_response_id)
        # The items are read already.
        names = ("model", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "truncation")
        counted = ResponseRequest(input="", **{name: getattr(body, name) for name in names})
        return await convert(counted, response_input.items, response_input.history, files_of(request), FileLoader.of(request))

    reply = await preprocess(request, converted)
    return InputTokens(input_tokens=len(reply.token_ids))


@router.get(
    _ONE,
    response_class=Response,
    responses=responses(ResponseObject, _EVENTS),
    dependencies=[known_query("include", "include_obfuscation", "starting_after", "stream")],
)
async def get_response(
    request: Request,
    response_id: str,
    stream: Annotated[bool, Query(description="Send the events of a background response that is streamed.")] = False,
    starting_after: Annotated[int | None, Query(ge=0, description="Only events after this sequence number.")] = None,
    include: Include = None,
    include_obfuscation: Annotated[Literal["false"] | None, Query(description="Not supported.")] = None,
) -> Response:
    """A stored response."""
    record = await _record(request, response_id)
    if not stream:
        if starting_after is not None:
            raise InvalidRequestError("starting_after: only with stream", field="starting_after")
        return _json(record.response)
    after = -1 if starting_after is None else starting_after
    run = responses_of(request).background.runs.get(response_id)
    if run is not None and run.is_streamed:
        return EventStreamResponse(run.follow(after), run.failure, gateway_of(request).stopping, lambda: None)
    if record.is_live or not record.events:
        reason = "another gateway works on it; ask again" if record.is_live else "it was not created with background and stream"
        raise InvalidRequestError(f"stream: this response has no events here: {reason}", field="stream")
    return Response(b"".join(split_events(record.events)[after + 1 :]), media_type="text/event-stream; charset=utf-8")


@router.delete(_ONE, response_model=DeletedResponse, responses=openapi_responses(), dependencies=[known_query()])
async def delete_response(request: Request, response_id: str) -> Response:
    """Delete a stored response. One that is made in the background is cancelled."""
    record = await _record(request, response_id)
    if record.is_live:
        await responses_of(request).background.cancel(record)
    await gateway_of(request).store.delete(record.tenant, response_id)
    return _json(orjson.dumps({"id": response_id, "object": "response", "deleted": True}))


@router.post(f"{_ONE}/cancel", response_model=ResponseObject, responses=openapi_responses(), dependencies=[known_query()])
async def cancel_response(request: Request, response_id: str) -> Response:
    """Cancel a response that is made in the background. One that has ended is returned as it is."""
    record = await responses_of(request).background.cancel(await _record(request, response_id))
    return _json(record.response)


@router.get(
    f"{_ONE}/input_items",
    response_model=ItemList,
    responses=openapi_responses(),
    dependencies=[known_query("after", "include", "limit", "order")],
)
async def list_input_items(
    request: Request,
    response_id: str,
    after: Annotated[str | None, Query(description="Begin after the item with this id.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    include: Include = None,
) -> Response:
    """The items that a stored response was made from, with the input and the output of the responses that it continues."""
    items = await responses_of(request).history.input_items(request.state.principal.tenant, response_id)
    if order == "desc":
        items.reverse()
    start = 0
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise InvalidRequestError(f"after: the response has no input item {after[:64]!r}", field="after")
        start = places[-1] + 1
    page = items[start : start + limit]
    ids = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return _json(orjson.dumps({"object": "list", "data": page, "has_more": start + limit < len(items), **ids}))


async def _record(request: Request, response_id: str) -> StoredResponse:
    return await responses_of(request).history.get(request.state.principal.tenant, response_id)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _kept(request: Request, run: Run) -> Callable[[], None]:
    """The release of a run that keeps the request's permission until it ends, and then writes to the audit log."""
    release = grant_of(request).keep(run.release)
    record = request.state.record

    def ended() -> None:
        # The client that closes its connection does not end the run. The one that cancels it does.
        record.is_aborted = run.writer.resource["status"] == "cancelled"
        release()
        if run.task is not None:
            gateway_of(request).access.ended("background", record, *audited(request.scope, request.scope["path"]))

    return ended
