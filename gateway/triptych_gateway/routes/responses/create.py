"""POST /v1/responses, at once or in the background, and the routes that take the same items: compact and input_tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from fastapi import Request, Response
from triptych.errors import TriptychError
from triptych.v1 import generation_pb2, preprocess_pb2

from triptych_gateway.access.control import audited
from triptych_gateway.answers.answer import Answer
from triptych_gateway.answers.responses.background import Run
from triptych_gateway.answers.responses.keeper import kept_events, kept_whole
from triptych_gateway.answers.stream import EventStreamResponse
from triptych_gateway.answers.whole import WholeResponse
from triptych_gateway.dialects.responses.compaction import compacted, summary_request, with_task
from triptych_gateway.dialects.responses.dialect import ResponsesDialect
from triptych_gateway.routes.json_body import files_of, take_hold
from triptych_gateway.schemas.responses.compact import CompactRequest
from triptych_gateway.schemas.responses.input_tokens import InputTokens, InputTokensRequest
from triptych_gateway.schemas.responses.request import ResponseRequest
from triptych_gateway.state import call_context_of, gateway_of, grant_of, request_id_of


async def create(request: Request, body: ResponseRequest) -> Response:
    """Make a response, and answer with it, with its events, or, in the background, with its beginning."""
    gateway, request_id = gateway_of(request), request_id_of(request)
    tenant = request.state.principal.tenant
    turn = await gateway.keeper.begin(tenant, body, files_of(request))
    # What a cancelled run has made must be known, if its key pays for it.
    is_streamed = bool(body.stream) or (bool(body.background) and grant_of(request).counts_tokens)
    dialect = ResponsesDialect(turn.context, turn.is_stored, is_streamed)
    call = await dialect.parse(body, request_id, files_of(request))
    await grant_of(request).admit(call.calls)
    # The body is no longer needed. Reserve memory for its files only, until a frontend has answered.
    release = take_hold(request, call.num_file_bytes)
    context = call_context_of(tenant)
    encoder = dialect.encoder(body, request_id, gateway.frontend.fingerprint(body.model))
    made = Answer(gateway.router.generate(call.calls, context, release), call, encoder, gateway.meter(request))
    if body.background:
        run = Run(turn, encoder, made.events(), release, bool(body.stream))
        run.release = _kept(request, run)
        await gateway.background.start(run)
        if not body.stream:
            return Response(encoder.json(), media_type="application/json")
        return EventStreamResponse(run.follow(-1), run, gateway.stopping, lambda: None)
    if call.is_stream:
        return EventStreamResponse(kept_events(made.events(), turn, encoder, gateway.keeper), encoder, gateway.stopping, release)
    return WholeResponse(kept_whole(made.whole(), turn, encoder, gateway.keeper), gateway.stopping, release)


def _kept(request: Request, run: Run) -> Callable[[], None]:
    """The release of a run that keeps the request's permission until it ends, and then writes to the audit log."""
    release = grant_of(request).keep(run.release)
    record = request.state.record

    def ended() -> None:
        # The client that closes its connection does not end the run. The one that cancels it does.
        record.is_aborted = run.encoder.resource["status"] == "cancelled"
        release()
        if run.task is not None:
            gateway_of(request).access.ended("background", record, *audited(request.scope, request.scope["path"]))

    return ended


async def compact(request: Request, body: CompactRequest) -> Response:
    """Let the model summarize a conversation, and answer with the summary as an item."""
    gateway, request_id = gateway_of(request), request_id_of(request)
    tenant = request.state.principal.tenant
    turn = await gateway.keeper.read(tenant, body.input, body.previous_response_id)
    asked = summary_request(body)
    dialect = ResponsesDialect(with_task(turn.context), is_stored=False, is_streamed=False)
    call = await dialect.parse(asked, request_id, files_of(request))
    await grant_of(request).admit(call.calls)
    release = take_hold(request, call.num_file_bytes)
    encoder = dialect.encoder(asked, request_id, None)
    context = call_context_of(tenant)
    made = Answer(gateway.router.generate(call.calls, context, release), call, encoder, gateway.meter(request))

    async def work() -> bytes:
        await made.whole()
        return compacted(encoder.resource)

    return WholeResponse(work(), gateway.stopping, release)


async def count(request: Request, body: InputTokensRequest) -> InputTokens:
    """The tokens of the prompt that a response would have. Nothing is stored, and no model runs."""
    gateway, request_id = gateway_of(request), request_id_of(request)
    tenant = request.state.principal.tenant
    turn = await gateway.keeper.read(tenant, body.input, body.previous_response_id)
    # The items are in the context.
    asked = ResponseRequest(
        model=body.model,
        input="",
        instructions=body.instructions,
        tools=body.tools,
        tool_choice=body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning=body.reasoning,
        truncation=body.truncation,
    )
    call = await ResponsesDialect(turn.context, is_stored=False, is_streamed=False).parse(asked, request_id, files_of(request))
    [only] = call.calls
    for file in only.files:
        file.item.data = file.content
    chat = cast(generation_pb2.ChatRequest, only.request)
    context = call_context_of(tenant)
    try:
        reply = await gateway.frontend.preprocess(preprocess_pb2.PreprocessRequest(chat=chat, context=context), request_id)
    except TriptychError as error:
        raise call.in_client_terms(error) from error
    return InputTokens(input_tokens=len(reply.token_ids))
