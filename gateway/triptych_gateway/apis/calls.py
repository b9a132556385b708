"""What the routes ask of the frontends: generated text, and prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Request, Response
from triptych.errors import TriptychError
from triptych.v1 import generation_pb2, preprocess_pb2

from triptych_gateway.apis.json_body import take_hold
from triptych_gateway.frontends.calls import MediaFile
from triptych_gateway.frontends.client import PREPROCESS
from triptych_gateway.generation.call import GenerationCall
from triptych_gateway.generation.http import EventStreamResponse, WholeResponse
from triptych_gateway.generation.run import Generation
from triptych_gateway.state import call_context_of, gateway_of, grant_of, request_id_of
from triptych_gateway.wire.contract import put_files
from triptych_gateway.wire.errors import openapi_responses
from triptych_gateway.wire.field_names import FieldNames, in_client_terms

#: What the OpenAPI document says of OpenAI's answers.
OPENAI_EVENTS = "One JSON object; or, when stream is true, server-sent events with chunks of it, and data: [DONE] at the end."
#: A streamed answer, for the OpenAPI document, whose schema is that of each event.
EVENT_STREAM: dict[str, Any] = {
    "text/event-stream": {
        "schema": {
            "type": "object",
            "properties": {"event": {"type": "string"}, "data": {"type": "string", "description": "JSON, or [DONE]."}},
            "required": ["data"],
        }
    }
}


def responses(model: type, description: str) -> dict[int | str, dict[str, Any]]:
    """The responses of a generation route, for the OpenAPI document.

    Args:
        model: schema of an answer that is not streamed.
    """
    return {200: {"model": model, "description": description, "content": EVENT_STREAM}, **openapi_responses()}


async def answer(request: Request, call: GenerationCall) -> Response:
    """Generate, and answer with events or with the whole answer."""
    generation, release = await generate(request, call)
    if call.is_stream:
        return EventStreamResponse(generation.events(), call.writer.failure, gateway_of(request).stopping, release)
    return WholeResponse(generation.whole(), gateway_of(request).stopping, release)


async def generate(request: Request, call: GenerationCall) -> tuple[Generation, Callable[[], None]]:
    """Let the caller's key admit a call. Returns its generation, which starts when it is read, and what releases its memory.

    Raises:
        AccessDeniedError: the key has too few tokens left.
    """
    await grant_of(request).admit(call.calls)
    # The body is no longer needed. Reserve memory for its files only, until a frontend has answered.
    release = take_hold(request, call.num_file_bytes)
    gateway = gateway_of(request)
    calls = gateway.router.generate(call.calls, call_context_of(request.state.principal.tenant), release)
    return Generation(calls, call, gateway.meter(request)), release


async def preprocess(
    request: Request, chat: generation_pb2.ChatRequest, files: Sequence[MediaFile], names: FieldNames
) -> preprocess_pb2.PreprocessResponse:
    """The prompt of a chat request, in tokens. Nothing is generated.

    Args:
        files: of the request. They are put into it.
        names: the client's names of the contract's fields, for errors.
    """
    put_files(files)
    gateway = gateway_of(request)
    context = call_context_of(request.state.principal.tenant)
    asked = preprocess_pb2.PreprocessRequest(chat=chat, context=context)
    reply = gateway.frontend.call(PREPROCESS, asked, request_id_of(request))
    try:
        return await gateway.until_disconnect(request, reply)
    except TriptychError as error:
        raise in_client_terms(error, names) from error
