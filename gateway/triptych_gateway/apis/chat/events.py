"""Writes the answers of /v1/chat/completions: OpenAI's chat.completion and chat.completion.chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from triptych.v1 import generation_pb2

from triptych_gateway.apis.chat.schema import ChatCompletionRequest
from triptych_gateway.apis.openai_events import OpenAiWriter
from triptych_gateway.generation.call import Choice
from triptych_gateway.wire.logprobs import prompt_logprobs_json, tokens_json


class ChatWriter(OpenAiWriter):
    """Writes the answer to one request. Its arguments are those of OpenAiWriter."""

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"
    content_field = "delta"

    def __init__(self, request_id: str, fingerprint: str | None, body: ChatCompletionRequest) -> None:
        super().__init__(request_id, fingerprint, body, {} if body.service_tier is None else {"service_tier": "default"})
        self._with_reasoning = body.include_reasoning is not False

    def opening(self, num_choices: int) -> bytes:
        """One event per choice, with its role."""
        first = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return b"".join(self._head + orjson.dumps({"index": index, **first}) + self._tail for index in range(num_choices))

    def _chunk_choice(self, index: int, delta: generation_pb2.ChoiceDelta) -> dict[str, Any]:
        kind = delta.WhichOneof("delta")
        new: dict[str, Any] = {}
        if kind == "text" and delta.text:
            new = {"content": delta.text}
        elif kind == "reasoning" and delta.reasoning and self._with_reasoning:
            new = _reasoning(delta.reasoning)
        elif kind == "tool_call" and (delta.tool_call.id or delta.tool_call.arguments):
            new = {"tool_calls": [_tool_call_piece(delta.tool_call)]}
        return {"index": index, "delta": new}

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        text = choice.text
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if tool_calls := choice.tool_calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in tool_calls
            ]
        if self._with_reasoning and (reasoning := choice.reasoning):
            message |= _reasoning(reasoning)
        return {"index": index, "message": message}

    def _finish_whole(self, answer: dict[str, Any], choices: Sequence[Choice]) -> None:
        if self._with_prompt_logprobs:
            answer["prompt_logprobs"] = prompt_logprobs_json(choices[0].prompt_logprobs)

    def _logprobs(self, logprobs: list[generation_pb2.TokenLogprob]) -> dict[str, Any]:
        return {"content": tokens_json(logprobs), "refusal": None}


def _reasoning(text: str) -> dict[str, str]:
    """By the name that most clients read, and by vLLM's newer one."""
    return {"reasoning_content": text, "reasoning": text}


def _tool_call_piece(piece: generation_pb2.ToolCallDelta) -> dict[str, Any]:
    """The first piece of a call has its id, type and name."""
    if not piece.id:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}
