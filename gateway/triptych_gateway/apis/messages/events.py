"""Writes answers of /v1/messages: Anthropic's message, and its events.

An answer is a list of content blocks. An event names its block by index, so a block is closed before the next one opens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import orjson
from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.apis.messages.answer import error_body
from triptych_gateway.apis.messages.schema import MessagesRequest
from triptych_gateway.apis.messages.signature import signature_of
from triptych_gateway.generation.call import Choice
from triptych_gateway.wire.cost import Cost
from triptych_gateway.wire.errors import ApiError
from triptych_gateway.wire.sse import TEXT, around_text, event
from triptych_gateway.wire.tools import arguments_object

_ID_PREFIX = "msg_"
#: Kind of a delta -> type of the event's delta, and the name of its text.
_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "tool_call": ("input_json_delta", "partial_json"),
}
#: Kind of a delta, and the number of its tool call: what a content block is made of.
_Key = tuple[str, int]
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessageWriter:
    """Writes the answer to one request, streamed or whole."""

    def __init__(self, request_id: str, body: MessagesRequest) -> None:
        self._request_id = request_id
        self._envelope = {"id": _ID_PREFIX + request_id, "type": "message", "role": "assistant", "model": body.model}
        # An answer that was cut before fills the model's context.
        self._max_tokens = body.max_tokens
        # Another stop string is not reported as one.
        self._stop_sequences = frozenset(body.stop_sequences or ())
        #: Send thinking as text, and not only in its signature.
        self._shows_thinking = body.shows_thinking
        self._is_started = False
        self._index = -1
        self._open: _Key | None = None
        #: The open block's delta event, before and after the text.
        self._template = (b"", b"")
        #: Thinking of the open block that is not shown.
        self._hidden: list[str] = []
        self._last = generation_pb2.ChoiceDelta()

    def opening(self, num_choices: int) -> bytes:
        """Nothing: message_start has the number of prompt tokens, which comes with the first delta."""
        return b""

    def delta(self, index: int, delta: generation_pb2.ChoiceDelta) -> bytes:
        """The events of one delta: the end of a block and the start of the next one too, if its kind is another."""
        events = b"" if self._is_started else self._start(delta.prompt_tokens)
        key, text = _key_of(delta), _text_of(delta)
        if key is not None:
            if key != self._open and (text or key[0] == "tool_call"):
                events += self._close_block() + self._open_block(key, delta.tool_call)
            if text:
                events += self._text_event(key, text)
        if delta.finish_reason:
            self._last = delta
            events += self._close_block()
        return events

    def closing(self, cost: Cost) -> bytes:
        """message_delta with the reason of the end and the usage, and message_stop."""
        ended = self._end(self._last, cost.usage)
        return event("message_delta", delta=ended, usage=_usage_json(cost.usage)) + event("message_stop")

    def failure(self, error: ApiError) -> bytes:
        """An error event."""
        return b"event: error\ndata: " + error_body(error, self._request_id) + b"\n\n"

    def whole(self, choices: Sequence[Choice], cost: Cost) -> bytes:
        """The message."""
        ended = self._end(choices[0].last, cost.usage)
        return orjson.dumps(
            self._envelope | {"content": list(self._blocks(choices[0].deltas))} | ended | {"usage": _usage_json(cost.usage)}
        )

    def _blocks(self, deltas: Sequence[generation_pb2.ChoiceDelta]) -> Iterator[dict[str, Any]]:
        """The content blocks. Neighbouring deltas of one kind, or of one tool call, are a block."""
        said = [delta for delta in deltas if _text_of(delta) or _key_of(delta, "tool_call")]
        for key, group in groupby(said, key=_key_of):
            pieces = list(group)
            text = "".join(map(_text_of, pieces))
            if key is not None:
                yield self._block(key, pieces[0].tool_call, text)

    def _block(self, key: _Key, call: generation_pb2.ToolCallDelta, text: str) -> dict[str, Any]:
        if key[0] == "text":
            return {"type": "text", "text": text}
        if key[0] == "tool_call":
            return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(text)}
        signature = signature_of(text, self._shows_thinking)
        return {"type": "thinking", "thinking": text if self._shows_thinking else "", "signature": signature}

    def _end(self, last: generation_pb2.ChoiceDelta, usage: common_pb2.Usage) -> dict[str, str | None]:
        """stop_reason and stop_sequence."""
        if last.finish_reason == common_pb2.FINISH_REASON_LENGTH:
            is_full = usage.completion_tokens < self._max_tokens
            return {"stop_reason": "model_context_window_exceeded" if is_full else "max_tokens", "stop_sequence": None}
        if last.finish_reason == common_pb2.FINISH_REASON_TOOL_CALLS:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if last.WhichOneof("matched_stop") == "stop_text" and last.stop_text in self._stop_sequences:
            return {"stop_reason": "stop_sequence", "stop_sequence": last.stop_text}
        return {"stop_reason": "end_turn", "stop_sequence": None}

    def _start(self, prompt_tokens: int) -> bytes:
        """message_start, and a ping. How much of the prompt was cached is known at the end; message_delta has it."""
        self._is_started = True
        usage = _usage_json(common_pb2.Usage(prompt_tokens=prompt_tokens))
        message: dict[str, Any] = self._envelope | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return event("message_start", message=message) + _PING

    def _text_event(self, key: _Key, text: str) -> bytes:
        if key[0] == "reasoning" and not self._shows_thinking:
            self._hidden.append(text)
            return b""
        return self._template[0] + orjson.dumps(text) + self._template[1]

    def _open_block(self, key: _Key, call: generation_pb2.ToolCallDelta) -> bytes:
        self._open, self._index = key, self._index + 1
        kind, name = _DELTAS[key[0]]
        self._template = around_text(event("content_block_delta", index=self._index, delta={"type": kind, name: TEXT}))
        block = self._block(key, call, "")
        if key[0] == "reasoning":
            block["signature"] = ""
        return event("content_block_start", index=self._index, content_block=block)

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        events = b""
        if self._open[0] == "reasoning":
            signature = signature_of("".join(self._hidden), self._shows_thinking)
            self._hidden.clear()
            events = event("content_block_delta", index=self._index, delta={"type": "signature_delta", "signature": signature})
        self._open = None
        return events + event("content_block_stop", index=self._index)


def _key_of(delta: generation_pb2.ChoiceDelta, only: str | None = None) -> _Key | None:
    kind = delta.WhichOneof("delta")
    if kind is None or only not in (None, kind):
        return None
    return kind, delta.tool_call.index if kind == "tool_call" else 0


def _text_of(delta: generation_pb2.ChoiceDelta) -> str:
    kind = delta.WhichOneof("delta")
    return delta.tool_call.arguments if kind == "tool_call" else delta.reasoning if kind == "reasoning" else delta.text


def _usage_json(usage: common_pb2.Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "service_tier": "standard",
    }
