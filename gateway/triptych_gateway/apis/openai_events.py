"""What OpenAI's chat completions and completions share: the envelope of answers and chunks."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson
from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.generation.call import Choice
from triptych_gateway.wire.cost import Cost, triptych_json, usage_json
from triptych_gateway.wire.errors import ApiError
from triptych_gateway.wire.generation import GenerationRequest
from triptych_gateway.wire.sse import DONE, TEXT, around_text

_FINISH_REASONS = {
    common_pb2.FINISH_REASON_UNSPECIFIED: None,
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
    common_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


def stop_reason(delta: generation_pb2.ChoiceDelta) -> str | int | None:
    """The stop string or stop token id that ended the choice, if one did."""
    matched = delta.WhichOneof("matched_stop")
    return getattr(delta, matched) if matched else None


class OpenAiWriter(ABC):
    """Writes the answer to one request, streamed or whole.

    Args:
        request_id: the answer's id is this with `id_prefix`.
        fingerprint: OpenAI's system_fingerprint.
        body: the request.
        further: further fields of the envelope.
    """

    id_prefix: ClassVar[str]
    object_name: ClassVar[str]
    chunk_object_name: ClassVar[str]
    #: The field of a streamed choice that has its new content.
    content_field: ClassVar[str]

    def __init__(
        self, request_id: str, fingerprint: str | None, body: GenerationRequest, further: Mapping[str, Any] | None = None
    ) -> None:
        self._envelope = {
            "id": self.id_prefix + request_id,
            "object": self.object_name,
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": fingerprint,
            **(further or {}),
        }
        self._include_usage = body.include_usage
        self._with_logprobs = body.num_logprobs is not None
        self._with_token_ids = bool(body.return_token_ids)
        self._with_prompt_logprobs = body.prompt_logprobs is not None
        continuous_usage = body.has_continuous_usage
        # A chunk is head + JSON of the choice + tail. A chunk with only new text is prefix + text + suffix, by choice.
        envelope = orjson.dumps(self._envelope | {"object": self.chunk_object_name})
        self._head = b"data: " + envelope[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self._include_usage else b"]}\n\n"
        self._templates: dict[int, tuple[bytes, bytes]] = {}
        self._usages: dict[int, common_pb2.Usage] | None = {} if continuous_usage else None
        self._is_plain = not self._with_logprobs and not self._with_token_ids and not continuous_usage

    def opening(self, num_choices: int) -> bytes:
        """Events before the first delta."""
        return b""

    def delta(self, index: int, delta: generation_pb2.ChoiceDelta) -> bytes:
        """The event of one delta; empty if it has nothing new."""
        text = delta.text
        if text and self._is_plain and not delta.finish_reason:
            prefix, suffix = self._templates.get(index) or self._add_template(index)
            return prefix + orjson.dumps(text) + suffix
        choice = self._chunk_choice(index, delta)
        reason = _FINISH_REASONS[delta.finish_reason]
        logprobs = delta.logprobs if self._with_logprobs else ()
        token_ids = delta.token_ids if self._with_token_ids else ()
        tail = self._tail if self._usages is None else self._usage_tail(self._usages.setdefault(index, common_pb2.Usage()), delta)
        if reason is None and not logprobs and not token_ids and not choice[self.content_field]:
            return b""
        choice["logprobs"] = self._logprobs(list(logprobs)) if logprobs else None
        choice["finish_reason"] = reason
        if reason is not None:
            choice["stop_reason"] = stop_reason(delta)
        if self._with_token_ids:
            choice["token_ids"] = list(token_ids)
        return self._head + orjson.dumps(choice) + tail

    def _usage_tail(self, usage: common_pb2.Usage, delta: generation_pb2.ChoiceDelta) -> bytes:
        """Count the delta's tokens, and end its chunk with the choice's usage so far."""
        usage.prompt_tokens += delta.prompt_tokens
        usage.completion_tokens += self._num_new_tokens(delta)
        return b'],"usage":%b}\n\n' % orjson.dumps(usage_json(usage))

    def _add_template(self, index: int) -> tuple[bytes, bytes]:
        choice = {**self._chunk_choice(index, generation_pb2.ChoiceDelta(text=TEXT)), "logprobs": None, "finish_reason": None}
        # Not of the whole chunk: the model's name may be anything.
        before, after = around_text(orjson.dumps(choice))
        self._templates[index] = self._head + before, after + self._tail
        return self._templates[index]

    def closing(self, cost: Cost) -> bytes:
        """The chunk with the usage, if requested, and [DONE]."""
        if not self._include_usage:
            return DONE
        usage, extension = orjson.dumps(usage_json(cost.usage)), orjson.dumps(triptych_json(cost))
        return self._head + b'],"usage":%b,"triptych":%b}\n\n' % (usage, extension) + DONE

    def failure(self, error: ApiError) -> bytes:
        """An event with the error's body, and [DONE]."""
        return b"data: " + error.body + b"\n\n" + DONE

    def whole(self, choices: Sequence[Choice], cost: Cost) -> bytes:
        """The answer as one JSON object."""
        answer: dict[str, Any] = self._envelope | {
            "choices": [],
            "usage": usage_json(cost.usage),
            "triptych": triptych_json(cost),
        }
        for index, choice in enumerate(choices):
            written = self._whole_choice(index, choice)
            written["logprobs"] = self._logprobs(choice.logprobs) if self._with_logprobs else None
            last = choice.last
            written["finish_reason"] = _FINISH_REASONS[last.finish_reason]
            written["stop_reason"] = stop_reason(last)
            if self._with_token_ids:
                written["token_ids"] = choice.token_ids
            answer["choices"].append(written)
        self._finish_whole(answer, choices)
        return orjson.dumps(answer)

    @abstractmethod
    def _finish_whole(self, answer: dict[str, Any], choices: Sequence[Choice]) -> None:
        """Add what only this route's whole answers have."""

    def _num_new_tokens(self, delta: generation_pb2.ChoiceDelta) -> int:
        """How many output tokens the delta has."""
        return len(delta.token_ids)

    @abstractmethod
    def _chunk_choice(self, index: int, delta: generation_pb2.ChoiceDelta) -> dict[str, Any]:
        """Index and new content of a streamed choice."""

    @abstractmethod
    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        """Index and content of a choice."""

    @abstractmethod
    def _logprobs(self, logprobs: list[generation_pb2.TokenLogprob]) -> dict[str, Any]:
        """The log probabilities of these tokens."""
