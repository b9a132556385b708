"""What the routes and the WebSockets of /v1/responses share."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from triptych_gateway.apis.file_inputs import FileLoader
from triptych_gateway.apis.responses.background import Background
from triptych_gateway.apis.responses.events import ResponseWriter
from triptych_gateway.apis.responses.history import ResponseHistory, ResponseInput
from triptych_gateway.apis.responses.request import convert
from triptych_gateway.apis.responses.schema import ResponseRequest
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import FrontendCall
from triptych_gateway.generation.call import GenerationCall
from triptych_gateway.state import Gateway
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
    body: ResponseRequest,
    response_input: ResponseInput,
    parts: FileParts,
    request_id: str,
    loader: FileLoader,
    *,
    is_streamed: bool,
) -> tuple[GenerationCall, ResponseWriter]:
    """The call for a response, and what writes it.

    Args:
        loader: reads the files that the items name.
        is_streamed: whether events are needed as text appears; not the same as the body's `stream` on a WebSocket.
    """
    chat, files, names = await convert(body, response_input.items, response_input.history, parts, loader)
    writer = ResponseWriter(body, response_input.response_id, response_input.is_stored)
    call = FrontendCall(chat, request_id, output_mode(is_streamed), files)
    return GenerationCall([call], writer, is_streamed, names), writer
