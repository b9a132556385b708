"""POST /v1/completions."""

from __future__ import annotations

from fastapi import Request, Response

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.apis.calls import OPENAI_EVENTS, answer, responses
from triptych_gateway.apis.completions.events import CompletionWriter
from triptych_gateway.apis.completions.request import complete_calls
from triptych_gateway.apis.completions.schema import Completion, CompletionRequest
from triptych_gateway.apis.json_body import JsonRoute, files_of
from triptych_gateway.generation.call import GenerationCall
from triptych_gateway.state import gateway_of, request_id_of
from triptych_gateway.wire.field_names import generation_fields

router = AccessRouter(access=Access.KEY, tags=["OpenAI"], route_class=JsonRoute)


@router.post("/v1/completions", response_class=Response, responses=responses(Completion, OPENAI_EVENTS))
async def create_completion(request: Request, body: CompletionRequest) -> Response:
    """Continue one or several prompts."""
    parts, request_id = files_of(request), request_id_of(request)
    calls = await parts.run(lambda: complete_calls(body, request_id, parts))
    writer = CompletionWriter(request_id, gateway_of(request).frontend.fingerprint(body.model), body)
    return await answer(request, GenerationCall(calls, writer, bool(body.stream), generation_fields(body), body.num_choices))
