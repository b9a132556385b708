"""POST /v1/responses, at once or in the background, and the routes that take the same items: compact and input_tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fastapi import Request, Response
from starlette.requests import HTTPConnection

from triptych_gateway.access.control import audited
from triptych_gateway.apis.calls import generate, preprocess
from triptych_gateway.apis.json_body import files_of
from triptych_gateway.apis.responses.background import Background, Run
from triptych_gateway.apis.responses.compaction import compacted, summary_request, with_task
from triptych_gateway.apis.responses.events import ResponseWriter
from triptych_gateway.apis.responses.history import ResponseHistory, ResponseInput
from triptych_gateway.apis.responses.request import convert
from triptych_gateway.apis.responses.schema import CompactRequest, InputTokens, InputTokensRequest, ResponseRequest
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import FrontendCall
from triptych_gateway.generation.call import GenerationCall
from triptych_gateway.generation.http import EventStreamResponse, WholeResponse
from triptych_gateway.state import Gateway, gateway_of, grant_of, request_id_of
from triptych_gateway.wire.contract import output_mode


class Responses:
    """What the routes of /v1/responses share: the history of responses, and those that are made in the background."""

    def __init__(self, gateway: Gateway) -> None:
        settings, metrics = gateway.settings, gateway.metrics
        self.history = ResponseHistory(gateway.store, settings.max_stored_response_bytes, settings.max_body_bytes)
        shares = gateway.access.shares(settings.max_background_responses)
        self.background = Background(self.history, shares, lambda error: metrics.failed_later("/v1/responses", error))
        metrics.background_responses.set_function(lambda: len(self.background.runs))
        gateway.before_close.append(lambda: self.background.close(settings.shutdown_grace_s, gateway.stopping))


def responses_of(request: HTTPConnection) -> Responses:
    """Those of the gateway that answers this request."""
    responses: Responses = request.app.state.responses
    return responses


async def response_call(
    body: ResponseRequest, made_from: ResponseInput, parts: FileParts, request_id: str, *, is_streamed: bool
) -> tuple[GenerationCall, ResponseWriter]:
    """The call for a response, and what writes it.

    Args:
        is_streamed: whether events are needed as text appears; not the same as the body's `stream` on a WebSocket.
    """
    chat, files, names = await convert(body, made_from.items, made_from.history, parts)
    writer = ResponseWriter(body, made_from.response_id, made_from.is_stored)
    call = FrontendCall(chat, request_id, output_mode(is_streamed), files)
    return GenerationCall([call], writer, is_streamed, names), writer


async def create(request: Request, body: ResponseRequest) -> Response:
    """Make a response, and answer with it, with its events, or, in the background, with its beginning."""
    history, background, stopping = responses_of(request).history, responses_of(request).background, gateway_of(request).stopping
    parts = files_of(request)
    made_from = await history.begin(request.state.principal.tenant, body, parts)
    # What a cancelled run has made must be known, if its key pays for it.
    is_streamed = bool(body.stream) or (bool(body.background) and grant_of(request).counts_tokens)
    call, writer = await response_call(body, made_from, parts, request_id_of(request), is_streamed=is_streamed)
    generation, release = await generate(request, call)
    if body.background:
        run = Run(made_from, writer, generation.events(), release, bool(body.stream))
        run.release = _kept(request, run)
        await background.start(run)
        if not body.stream:
            return Response(writer.json(), media_type="application/json")
        return EventStreamResponse(run.follow(-1), run.failure, stopping, lambda: None)
    if body.stream:
        events = history.kept_events(generation.events(), made_from, writer)
        return EventStreamResponse(events, writer.failure, stopping, release)
    return WholeResponse(history.kept_whole(generation.whole(), made_from, writer), stopping, release)


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


async def compact(request: Request, body: CompactRequest) -> Response:
    """Let the model summarize a conversation, and answer with the summary as an item."""
    made_from = await responses_of(request).history.read(request.state.principal.tenant, body.input, body.previous_response_id)
    made_from = replace(made_from, items=with_task(made_from.items))
    call, writer = await response_call(
        summary_request(body), made_from, files_of(request), request_id_of(request), is_streamed=False
    )
    generation, release = await generate(request, call)

    async def work() -> bytes:
        await generation.whole()
        return compacted(writer.resource)

    return WholeResponse(work(), gateway_of(request).stopping, release)


async def count(request: Request, body: InputTokensRequest) -> InputTokens:
    """The tokens of the prompt that a response would have. Nothing is stored, and no model runs."""
    made_from = await responses_of(request).history.read(request.state.principal.tenant, body.input, body.previous_response_id)
    # The items are read already.
    names = ("model", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "truncation")
    counted = ResponseRequest(input="", **{name: getattr(body, name) for name in names})
    chat, files, fields = await convert(counted, made_from.items, made_from.history, files_of(request))
    reply = await preprocess(request, chat, files, fields)
    return InputTokens(input_tokens=len(reply.token_ids))
