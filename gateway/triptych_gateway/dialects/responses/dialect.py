"""The dialect of /v1/responses, for one request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from triptych_gateway.dialects.dialect import Call
from triptych_gateway.dialects.responses.context import Context
from triptych_gateway.dialects.responses.encoder import ResponsesEncoder
from triptych_gateway.dialects.responses.messages import has_media
from triptych_gateway.dialects.responses.request import chat_call
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import FrontendCall
from triptych_gateway.schemas.responses.request import ResponseRequest


class ResponsesDialect:
    """The request and the answer of one response.

    Args:
        context: the items of the request, and of the responses that it continues.
        is_stored: whether the response will be kept.
        is_streamed: whether events are needed as text appears; not the same as the body's `stream` on a WebSocket.
    """

    def __init__(self, context: Context, is_stored: bool, is_streamed: bool) -> None:
        self._context = context
        self._is_stored = is_stored
        self._is_streamed = is_streamed

    async def parse(self, body: ResponseRequest, request_id: str, files: FileParts) -> Call:
        def convert() -> tuple[FrontendCall, Mapping[str, str]]:
            return chat_call(body, request_id, self._context, files, self._is_streamed)

        # Files of the history are not in the body.
        call, names = await (asyncio.to_thread(convert) if has_media(self._context.history) else files.run(convert))
        return Call([call], 1, self._is_streamed, names)

    def encoder(self, body: ResponseRequest, request_id: str, fingerprint: str | None) -> ResponsesEncoder:
        return ResponsesEncoder(body, self._context.response_id, self._is_stored)
