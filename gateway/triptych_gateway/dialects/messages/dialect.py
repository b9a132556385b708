"""The dialect of /v1/messages."""

from __future__ import annotations

from triptych.v1 import generation_pb2

from triptych_gateway.dialects.dialect import Call, Encoder
from triptych_gateway.dialects.messages import convert
from triptych_gateway.dialects.messages.encoder import MessagesEncoder
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import FrontendCall
from triptych_gateway.schemas.messages.request import MessagesRequest


class MessagesDialect:
    """Requests and answers of /v1/messages."""

    async def parse(self, body: MessagesRequest, request_id: str, files: FileParts) -> Call:
        chat, media, names = await files.run(lambda: convert.chat_request(body, files))
        convert.set_options(chat, body)
        mode = generation_pb2.OUTPUT_MODE_DELTA if body.stream else generation_pb2.OUTPUT_MODE_FINAL
        return Call([FrontendCall(chat, request_id, mode, media)], 1, bool(body.stream), names)

    def encoder(self, body: MessagesRequest, request_id: str, fingerprint: str | None) -> Encoder:
        return MessagesEncoder(request_id, body.model, body.max_tokens, frozenset(body.stop_sequences or ()), body.shows_thinking)
