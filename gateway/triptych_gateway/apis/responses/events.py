"""Writes the answers of /v1/responses: events, or one response object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from triptych.errors import InternalError
from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.apis.responses.output import FunctionCall, Message, NumberedEvents, OutputItem, Reasoning
from triptych_gateway.apis.responses.resource import ended, failed, new_resource
from triptych_gateway.apis.responses.schema import ENCRYPTED_REASONING, ResponseRequest
from triptych_gateway.generation.call import Choice
from triptych_gateway.wire.cost import Cost
from triptych_gateway.wire.errors import ApiError
from triptych_gateway.wire.sse import DONE, data_of, event, split_events


class ResponseWriter:
    """Writes the answer to one request: events, or one response object.

    Args:
        body: the request.
        response_id: the id of the response.
        is_stored: whether the response will be kept.
    """

    def __init__(self, body: ResponseRequest, response_id: str, is_stored: bool) -> None:
        #: The response object as it is now.
        self.resource: dict[str, Any] = new_resource(body, response_id, is_stored)
        #: Whether the response has ended, with a result or an error. It is read per token.
        self.is_finished = False
        self._events = NumberedEvents()
        self._done: list[dict[str, Any]] = []
        self._open: OutputItem | None = None
        self._is_created = self._is_opened = self._is_cut = False
        self._with_logprobs = body.num_logprobs is not None
        self._is_summary = body.summarizes
        self._is_sealed = ENCRYPTED_REASONING in (body.include or ())
        self._num_calls = 0
        #: False: only the prompt is computed, so that a later response starts faster. There is no output then.
        self.generates = True

    def queued(self) -> bytes:
        """The first events of a response that runs in the background. `opening` then writes the rest."""
        self.resource["status"] = "queued"
        self._is_created = True
        return self._state("created") + self._state("queued")

    def opening(self, num_choices: int) -> bytes:
        """The events before the first item; none the second time."""
        if self._is_opened:
            return b""
        self._is_opened = True
        self.resource["status"] = "in_progress"
        created = b"" if self._is_created else self._state("created")
        return created + self._state("in_progress")

    def delta(self, index: int, delta: generation_pb2.ChoiceDelta) -> bytes:
        """The events of one delta; empty if it has nothing new."""
        item = self._open
        text = delta.text
        if text and type(item) is Message and not delta.finish_reason and not self._with_logprobs:
            return item.add(text)
        kind = delta.WhichOneof("delta")
        written = b""
        if kind == "text" and (text or (self._with_logprobs and delta.logprobs and isinstance(item, Message))):
            written = self._text(text, delta)
        elif kind == "reasoning" and delta.reasoning:
            written = self._reasoning(delta.reasoning)
        elif kind == "tool_call":
            written = self._tool_call(delta.tool_call)
        if delta.finish_reason:
            self._is_cut = delta.finish_reason == common_pb2.FINISH_REASON_LENGTH
        return written

    def closing(self, cost: Cost) -> bytes:
        """The end of the last item, the response object, and [DONE]."""
        written = b""
        self._is_cut = self._is_cut and self.generates
        if self._open is None and not self._done and not self._is_cut and self.generates:
            written = self._begin(self._message())
        written += self._end(None, "incomplete" if self._is_cut else "completed")
        self.is_finished = True
        self.resource = ended(self.resource, self._done, self._is_cut, cost)
        return written + self._state(self.resource["status"]) + DONE

    def restated(self, written: bytes) -> bytes:
        """What `closing` wrote, with the response object as it is now."""
        *earlier, state, done = split_events(written)
        fields = orjson.loads(data_of(state)) | {"response": self.resource}
        return b"".join([*earlier, event(fields.pop("type"), **fields), done])

    def failure(self, error: ApiError) -> bytes:
        """The error, the response object, and [DONE]."""
        told = self._events.write("error", code=error.code or error.type, message=error.message, param=error.param)
        if not self.is_finished:
            self.fail(error)
        return told + self._state("failed") + DONE

    def fail(self, error: ApiError) -> None:
        """Note that the response ended with an error. Its output is what was complete, and what there is of the last item."""
        self._end_quietly()
        self.resource = failed(self.resource, error)

    def cancel(self) -> bytes:
        """End a background response that was cancelled. Returns the last events."""
        self._end_quietly()
        self.resource = self.resource | {"status": "cancelled"}
        return DONE

    def whole(self, choices: Sequence[Choice], cost: Cost) -> bytes:
        """The response object."""
        self.opening(1)
        for delta in choices[0].deltas:
            self.delta(0, delta)
        self.closing(cost)
        return self.json()

    def json(self) -> bytes:
        """The response object as it is now."""
        return orjson.dumps(self.resource)

    def _state(self, status: str) -> bytes:
        return self._events.write(f"response.{status}", response=self.resource)

    def _text(self, text: str, delta: generation_pb2.ChoiceDelta) -> bytes:
        written, item = b"", self._open
        if not isinstance(item, Message):
            item = self._message()
            written = self._begin(item)
        if self._with_logprobs:
            return written + item.add_with_logprobs(text, list(delta.logprobs))
        return written + item.add(text)

    def _reasoning(self, text: str) -> bytes:
        written, item = b"", self._open
        if not isinstance(item, Reasoning):
            item = Reasoning(self._events, self.resource["id"], self._next_index, self._is_summary, self._is_sealed)
            written = self._begin(item)
        return written + item.add(text)

    def _tool_call(self, piece: generation_pb2.ToolCallDelta) -> bytes:
        written, item = b"", self._open
        if not isinstance(item, FunctionCall) or item.number != piece.index:
            if piece.index != self._num_calls:
                raise InternalError(f"the frontend sent tool call {piece.index} after {self._num_calls} calls")
            self._num_calls += 1
            item = FunctionCall(self._events, self.resource["id"], self._next_index, piece)
            written = self._begin(item)
        item.is_incomplete = piece.incomplete
        return written + item.add(piece.arguments) if piece.arguments else written

    def _message(self) -> Message:
        return Message(self._events, self.resource["id"], self._next_index, self._with_logprobs)

    @property
    def _next_index(self) -> int:
        return len(self._done) + (self._open is not None)

    def _begin(self, item: OutputItem) -> bytes:
        """End the open item, and begin another one."""
        written = self._end(item, "completed")
        self._open = item
        return written + item.opening()

    def _end(self, following: OutputItem | None, status: str) -> bytes:
        """End the open item, if there is one."""
        item = self._open
        if item is None:
            return b""
        if isinstance(item, Message) and status == "completed":
            item.phase = "commentary" if isinstance(following, FunctionCall) else "final_answer" if following is None else None
        if isinstance(item, FunctionCall) and item.is_incomplete:
            status = "incomplete"
        written = item.closing(status)
        self._done.append(item.json(status))
        self._open = None
        return written

    def _end_quietly(self) -> None:
        """Keep what there is of the open item, without events."""
        if self._open is not None:
            self._done.append(self._open.json("incomplete"))
            self._open = None
        self.is_finished = True
        self.resource["output"] = self._done
