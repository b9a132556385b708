"""What the routes ask of the frontends: generated text, prompts, and what models give that generate nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import orjson
from fastapi import Depends, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from triptych.errors import InvalidRequestError, TriptychError
from triptych.v1 import generation_pb2, preprocess_pb2
from triptych_common.limits import MAX_AFFINITY_KEY_CHARS

from triptych_gateway.apis.json_body import files_of, take_hold
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.client import PREPROCESS, Method
from triptych_gateway.generation.call import GenerationCall
from triptych_gateway.generation.http import EventStreamResponse, WholeResponse
from triptych_gateway.generation.run import Generation
from triptych_gateway.state import call_context_of, gateway_of, grant_of, request_id_of
from triptych_gateway.tracing import note_call
from triptych_gateway.wire.contract import ConvertedChat, put_files
from triptych_gateway.wire.errors import openapi_responses
from triptych_gateway.wire.field_names import FieldNames, in_client_terms
from triptych_gateway.wire.schema import Schema

Pooled = TypeVar("Pooled", generation_pb2.EmbedResponse, generation_pb2.ClassifyResponse, generation_pb2.ScoreResponse)
PoolingCall = TypeVar("PoolingCall", generation_pb2.EmbedRequest, generation_pb2.ClassifyRequest, generation_pb2.ScoreRequest)
Body = TypeVar("Body", bound=Schema)
#: Names the session that a request belongs to, where the body has no `prompt_cache_key`. Longer names are cut.
_SESSION_HEADER = "x-session-id"
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


def check_origin(connection: HTTPConnection) -> None:
    """Refuse a page of another site, for what browsers let it send without asking. Raises HTTPException."""
    origin = connection.headers.get("origin")
    is_own = origin is not None and urlsplit(origin).netloc == connection.headers.get("host")
    if origin is not None and not is_own and not gateway_of(connection).settings.allows_origin(origin):
        raise HTTPException(403, "pages of this origin may not call this server")


def known_query(*names: str) -> Any:
    """A dependency that refuses parameters of the query that the route does not know."""

    def check(request: Request) -> None:
        unknown = next((name for name in request.query_params if name.removesuffix("[]") not in names), None)
        if unknown is not None:
            raise InvalidRequestError(f"{unknown[:60]}: unknown parameter of the query", field=unknown[:60])

    return Depends(check)


async def answer(request: Request, call: GenerationCall) -> Response:
    """Generate, and answer with events or with the whole answer."""
    generation, release = await generate(request, call)
    if call.is_stream:
        return EventStreamResponse(generation.events(), call.writer.failure, gateway_of(request).stopping, release, call.form)
    return WholeResponse(generation.whole(), gateway_of(request).stopping, release)


async def generate(request: Request, call: GenerationCall) -> tuple[Generation, Callable[[], None]]:
    """Let the caller's key admit a call. Returns its generation, which starts when it is read, and what releases its memory.

    Raises:
        AccessDeniedError: the key has too few tokens left.
    """
    await grant_of(request).admit(call.calls)
    if session := request.headers.get(_SESSION_HEADER, "")[:MAX_AFFINITY_KEY_CHARS]:
        for one in call.calls:
            if not one.request.options.affinity_key:
                one.request.options.affinity_key = session
    # The body is no longer needed. Reserve memory for its files only, until a frontend has answered.
    release = take_hold(request, call.num_file_bytes)
    gateway = gateway_of(request)
    calls = gateway.router.generate(call.calls, call_context_of(request.state.principal.tenant), release, call.at_once)
    return Generation(calls, call, gateway.meter(request)), release


async def preprocess(request: Request, convert: Callable[[], Awaitable[ConvertedChat]]) -> preprocess_pb2.PreprocessResponse:
    """The prompt of a chat request, in tokens. Nothing is generated.

    Args:
        convert: makes the chat request. It ends early if the client leaves.
    """
    return await gateway_of(request).until_disconnect(request, _preprocess(request, convert))


async def _preprocess(request: Request, convert: Callable[[], Awaitable[ConvertedChat]]) -> preprocess_pb2.PreprocessResponse:
    chat, files, names = await convert()
    # PreprocessService takes no uploads.
    put_files(files)
    asked = preprocess_pb2.PreprocessRequest(chat=chat, context=call_context_of(request.state.principal.tenant))
    del chat
    try:
        return await gateway_of(request).frontend.call(PREPROCESS, asked, request_id_of(request))
    except TriptychError as error:
        raise in_client_terms(error, names) from error


async def answer_pooling(
    request: Request,
    body: Body,
    method: Method[Pooled],
    convert: Callable[[Body, FileParts], PoolingCall],
    names: FieldNames,
    to_json: Callable[[Pooled], dict[str, Any]],
) -> Response:
    """Convert a body, let the caller's key admit it, ask a frontend, and answer."""
    gateway, files = gateway_of(request), files_of(request)
    message = await files.run(lambda: convert(body, files))
    message.context.CopyFrom(call_context_of(request.state.principal.tenant))
    note_call(method.operation, message.model)
    await grant_of(request).admit_pooling(message)
    call = gateway.frontend.call(method, message, request_id_of(request))
    try:
        reply = await gateway.until_disconnect(request, call)
    except TriptychError as error:
        raise in_client_terms(error, names) from error
    gateway.metrics.pooled(request.state.record, reply.usage)
    # Ten thousand vectors take a quarter of a second to encode.
    content = await asyncio.to_thread(lambda: _dumps(to_json(reply)))
    return Response(content, media_type="application/json")


def _dumps(answer: dict[str, Any]) -> bytes:
    """JSON of an answer, input by input: orjson lets no other thread run while it encodes."""
    name, items = next((key, value) for key, value in answer.items() if isinstance(value, list))
    rest = b"".join(b"%b:%b," % (orjson.dumps(key), orjson.dumps(value)) for key, value in answer.items() if key != name)
    return b"{%b%b:[%b]}" % (rest, orjson.dumps(name), b",".join(map(orjson.dumps, items)))
