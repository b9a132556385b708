"""The dialect of /v1/chat/completions: OpenAI's chat.completion and chat.completion.chunk."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from triptych_common.pb import generation_pb2

from triptych_gateway.dialects import convert
from triptych_gateway.dialects.dialect import Call, Encoder
from triptych_gateway.dialects.media import media_fields
from triptych_gateway.dialects.openai import FIELD_NAMES, OpenAiEncoder, finite_logprob
from triptych_gateway.file_parts import FileParts
from triptych_gateway.schemas.chat import ChatCompletionRequest, has_media


class ChatDialect:
    """Requests and answers of /v1/chat/completions."""

    async def parse(self, body: ChatCompletionRequest, request_id: str, files: FileParts) -> Call:
        if not has_media(body.messages):
            call = convert.chat_call(body, request_id, files)
            return Call([call], body.num_choices, bool(body.stream), _field_names(body))
        # Decoding files takes milliseconds per megabyte, so it runs in a thread.
        call = await asyncio.to_thread(convert.chat_call, body, request_id, files)
        return Call([call], body.num_choices, bool(body.stream), _field_names(body) | media_fields(body.messages))

    def encoder(self, body: ChatCompletionRequest, request_id: str, fingerprint: str | None) -> Encoder:
        return ChatEncoder(
            request_id,
            body.model,
            fingerprint,
            include_usage=body.include_usage,
            with_logprobs=body.num_logprobs is not None,
            with_token_ids=bool(body.return_token_ids),
        )


def _field_names(body: ChatCompletionRequest) -> dict[str, str]:
    names = dict(FIELD_NAMES)
    for sampling in ("options.sampling", "sampling"):
        names[f"{sampling}.logprobs"] = "top_logprobs"
        names[f"{sampling}.max_tokens"] = body.token_limit_name
    return names


class ChatEncoder(OpenAiEncoder):
    """Writes answers of /v1/chat/completions."""

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def opening(self, num_choices: int) -> bytes:
        """One event per choice, with its role."""
        first = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return b"".join(self._head + orjson.dumps({"index": index, **first}) + self._tail for index in range(num_choices))

    def _chunk_choice(self, index: int, text: str) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text} if text else {}}

    def _whole_choice(self, index: int, text: str) -> dict[str, Any]:
        return {"index": index, "message": {"role": "assistant", "content": text, "refusal": None}}

    def _logprobs(self, logprobs: list[generation_pb2.TokenLogprob]) -> dict[str, Any]:
        content = [_token(entry) | {"top_logprobs": [_token(top) for top in entry.top]} for entry in logprobs]
        return {"content": content, "refusal": None}


def _token(entry: generation_pb2.TokenLogprob | generation_pb2.TopLogprob) -> dict[str, Any]:
    return {"token": entry.token, "logprob": finite_logprob(entry.logprob), "bytes": list(entry.utf8)}
