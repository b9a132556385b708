"""Writes answers of /api/chat and /api/generate: Ollama's object, and its lines of JSON.

A line has new text, new thinking, or one whole tool call. The last line has the reason of the end, the tokens and the times.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.apis.ollama.answer import error_body
from triptych_gateway.generation.call import Choice
from triptych_gateway.wire.cost import Cost
from triptych_gateway.wire.errors import ApiError
from triptych_gateway.wire.logprobs import tokens_json
from triptych_gateway.wire.sse import TEXT, around_text
from triptych_gateway.wire.tools import arguments_object

_NS = 1e9


class OllamaWriter(ABC):
    """Writes the answer to one request, streamed or whole.

    Args:
        request_id: of the request, for its errors.
        model: the model's name as the client gave it.
        start_s: when the request came, on the clock of `time.perf_counter`.
        with_logprobs: whether log probabilities were asked for.
    """

    def __init__(self, request_id: str, model: str, start_s: float, with_logprobs: bool) -> None:
        self._request_id, self._model, self._start_s, self._with_logprobs = request_id, model, start_s, with_logprobs
        # A line with only new text is head + time + prefix + text + suffix.
        self._head = orjson.dumps({"model": model})[:-1] + b',"created_at":"'
        before, self._suffix = around_text(orjson.dumps({**self.content(TEXT), "done": False}, option=orjson.OPT_APPEND_NEWLINE))
        self._prefix = b'",' + before[1:]
        #: The pieces of the tool call that is being written.
        self._call: list[generation_pb2.ToolCallDelta] = []
        #: Of tokens that no line has told of.
        self._logprobs: list[generation_pb2.TokenLogprob] = []
        self._last = generation_pb2.ChoiceDelta()

    @abstractmethod
    def content(self, text: str = "", thinking: str = "", calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """The fields that have the content of the answer, or of a line."""

    def heartbeat(self) -> bytes:
        """A line with nothing new. Clients read each line as an object, so that there are no comments and no empty lines."""
        return self._line(self.content(), is_done=False)

    def opening(self, num_choices: int) -> bytes:
        """Nothing."""
        return b""

    def delta(self, index: int, delta: generation_pb2.ChoiceDelta) -> bytes:
        """The line of one delta. A tool call has one when it is complete."""
        text = delta.text
        if text and not self._call and not self._with_logprobs and not delta.finish_reason:
            return self._head + timestamp().encode() + self._prefix + orjson.dumps(text) + self._suffix
        if self._with_logprobs:
            self._logprobs.extend(delta.logprobs)
        kind, lines = delta.WhichOneof("delta"), b""
        if self._call and (delta.finish_reason or kind is not None) and not self._goes_on(delta):
            lines = self._call_line()
        if kind == "tool_call":
            self._call.append(delta.tool_call)
        elif text or delta.reasoning:
            lines += self._line(self.content(text, delta.reasoning), is_done=False)
        if delta.finish_reason:
            self._last = delta
            lines += self._call_line() if self._call else b""
        return lines

    def closing(self, cost: Cost) -> bytes:
        """The last line."""
        return self._line(self.content(), is_done=True, **self._end(self._last, cost))

    def failure(self, error: ApiError) -> bytes:
        """A last line with the error."""
        return error_body(error, self._request_id) + b"\n"

    def whole(self, choices: Sequence[Choice], cost: Cost) -> bytes:
        """The answer as one object."""
        choice = choices[0]
        self._logprobs = choice.logprobs if self._with_logprobs else []
        content = self.content(choice.text, choice.reasoning, [call_json(call) for call in choice.tool_calls])
        return self._line(content, is_done=True, **self._end(choice.last, cost)).removesuffix(b"\n")

    def loaded(self, reason: str, load_s: float) -> bytes:
        """The answer to a request that only loads a model, or lets it sleep."""
        total_s = time.perf_counter() - self._start_s
        end = {"done_reason": reason, "total_duration": nanoseconds(total_s), "load_duration": nanoseconds(load_s)}
        return self._line(self.content(), is_done=True, **end).removesuffix(b"\n")

    def _goes_on(self, delta: generation_pb2.ChoiceDelta) -> bool:
        """Whether a delta is a further piece of the tool call that is being written."""
        return delta.HasField("tool_call") and delta.tool_call.index == self._call[0].index

    def _call_line(self) -> bytes:
        """The line of the tool call that is complete now."""
        first, arguments = self._call[0], "".join(piece.arguments for piece in self._call)
        whole = generation_pb2.ToolCallDelta(index=first.index, id=first.id, name=first.name, arguments=arguments)
        self._call = []
        return self._line(self.content(calls=[call_json(whole)]), is_done=False)

    def _line(self, content: dict[str, Any], *, is_done: bool, **end: Any) -> bytes:
        line = {"model": self._model, "created_at": timestamp(), **content, "done": is_done, **end}
        if self._logprobs:
            line["logprobs"] = tokens_json(self._logprobs)
            self._logprobs = []
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)

    def _end(self, last: generation_pb2.ChoiceDelta, cost: Cost) -> dict[str, Any]:
        """Why the answer ended, its tokens, and its times in nanoseconds."""
        reason = "length" if last.finish_reason == common_pb2.FINISH_REASON_LENGTH else "stop"
        total_s = time.perf_counter() - self._start_s
        counts = {"prompt_eval_count": cost.usage.prompt_tokens, "eval_count": cost.usage.completion_tokens}
        end: dict[str, Any] = {"done_reason": reason, "total_duration": nanoseconds(total_s), **counts}
        if (timings := cost.timings) is not None:
            # The model's work is measured where it is done. The rest is waiting for a model that slept, and the way to it.
            work_s = timings.preprocess_s + timings.queue_s + timings.prefill_s + timings.decode_s
            end["load_duration"] = nanoseconds(max(0.0, total_s - work_s))
            end |= {"prompt_eval_duration": nanoseconds(timings.prefill_s), "eval_duration": nanoseconds(timings.decode_s)}
        return end


class ChatWriter(OllamaWriter):
    """Writes the answer of /api/chat."""

    def content(self, text: str = "", thinking: str = "", calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """A message."""
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = calls
        return {"message": message}


class GenerateWriter(OllamaWriter):
    """Writes the answer of /api/generate, whose requests have no tools."""

    def content(self, text: str = "", thinking: str = "", calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """The text, and what the model thought before."""
        return {"response": text, "thinking": thinking} if thinking else {"response": text}


def call_json(call: generation_pb2.ToolCallDelta) -> dict[str, Any]:
    """A whole tool call, whose arguments are an object."""
    function = {"index": call.index, "name": call.name, "arguments": arguments_object(call.arguments)}
    return {"id": call.id, "function": function}


def nanoseconds(seconds: float) -> int:
    """A time as Ollama tells it."""
    return round(seconds * _NS)


def timestamp() -> str:
    """The time now, as RFC 3339 has it."""
    return f"{datetime.now(UTC).isoformat()[:-6]}Z"
