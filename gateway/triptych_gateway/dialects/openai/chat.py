"""The dialect of /v1/chat/completions: OpenAI's chat.completion and chat.completion.chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from triptych.v1 import generation_pb2

from triptych_gateway.dialects import convert
from triptych_gateway.dialects.dialect import Call, Choice, Encoder
from triptych_gateway.dialects.openai.encoder import OpenAiEncoder
from triptych_gateway.dialects.openai.prompt_logprobs import finite_logprob, prompt_logprobs_json
from triptych_gateway.dialects.openai.request_fields import chat_fields
from triptych_gateway.file_parts import FileParts
from triptych_gateway.schemas.chat.request import ChatCompletionRequest


class ChatDialect:
    """Requests and answers of /v1/chat/completions."""

    async def parse(self, body: ChatCompletionRequest, request_id: str, files: FileParts) -> Call:
        call = await files.run(lambda: convert.chat_call(body, request_id, files))
        return Call([call], body.num_choices, bool(body.stream), chat_fields(body))

    def encoder(self, body: ChatCompletionRequest, request_id: str, fingerprint: str | None) -> Encoder:
        return ChatEncoder(
            request_id,
            body.model,
            fingerprint,
            include_usage=body.include_usage,
            continuous_usage=body.has_continuous_usage,
            with_logprobs=body.num_logprobs is not None,
            with_token_ids=bool(body.return_token_ids),
            with_reasoning=body.include_reasoning is not False,
            with_prompt_logprobs=body.prompt_logprobs is not None,
            further={"service_tier": "default"} if body.service_tier is not None else None,
        )


class ChatEncoder(OpenAiEncoder):
    """Writes answers of /v1/chat/completions.

    Args:
        with_reasoning: whether the answer has the reasoning.
        with_prompt_logprobs: whether the client requested log probabilities of the prompt.
        options: those of OpenAiEncoder.
    """

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def __init__(
        self,
        request_id: str,
        model: str,
        fingerprint: str | None,
        *,
        with_reasoning: bool = True,
        with_prompt_logprobs: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(request_id, model, fingerprint, **options)
        self._with_reasoning = with_reasoning
        self._with_prompt_logprobs = with_prompt_logprobs

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

    def _has_news(self, choice: dict[str, Any]) -> bool:
        return bool(choice["delta"])

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        text = choice.text
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if choice.tool_calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in choice.tool_calls
            ]
        if choice.reasoning and self._with_reasoning:
            message |= _reasoning(choice.reasoning_text)
        return {"index": index, "message": message}

    def _finish_whole(self, answer: dict[str, Any], choices: Sequence[Choice]) -> None:
        if self._with_prompt_logprobs:
            answer["prompt_logprobs"] = prompt_logprobs_json(choices[0].prompt_logprobs)

    def _logprobs(self, logprobs: list[generation_pb2.TokenLogprob]) -> dict[str, Any]:
        content = [_token(entry) | {"top_logprobs": [_token(top) for top in entry.top]} for entry in logprobs]
        return {"content": content, "refusal": None}


def _reasoning(text: str) -> dict[str, str]:
    """By the name that most clients read, and by vLLM's newer one."""
    return {"reasoning_content": text, "reasoning": text}


def _tool_call_piece(piece: generation_pb2.ToolCallDelta) -> dict[str, Any]:
    """The first piece of a call has its id, type and name."""
    if not piece.id:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}


def _token(entry: generation_pb2.TokenLogprob | generation_pb2.TopLogprob) -> dict[str, Any]:
    return {"token": entry.token, "logprob": finite_logprob(entry.logprob), "bytes": list(entry.utf8)}
