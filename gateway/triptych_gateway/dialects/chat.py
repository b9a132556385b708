"""OpenAI's chat.completion and chat.completion.chunk."""

from __future__ import annotations

from typing import Any

import orjson
from triptych_common.pb import generation_pb2

from triptych_gateway.dialects.common import AnswerFormat, finite_logprob


class ChatFormat(AnswerFormat):
    """Answers of /v1/chat/completions."""

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def opening(self, num_choices: int) -> bytes:
        """The role of each choice."""
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
    return {"token": entry.token, "logprob": finite_logprob(entry.logprob), "bytes": list(entry.token_bytes)}
