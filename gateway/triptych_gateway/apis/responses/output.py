"""The output items of a response while they are generated, and their events with sequence numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import orjson
from triptych.v1 import generation_pb2

from triptych_gateway.apis.responses.opaque import output_item_id, seal
from triptych_gateway.wire.logprobs import tokens_json
from triptych_gateway.wire.sse import TEXT, around_text, event


class DeltaTemplate:
    """The constant parts of a delta event. An event is then `prefix + text + suffix + number + end`.

    Args:
        kind: the type of the event.
        fields: all its fields but `delta` and `sequence_number`.
    """

    def __init__(self, kind: str, fields: dict[str, Any]) -> None:
        self.prefix, after = around_text(event(kind, **fields, delta=TEXT))
        self.suffix = after.removesuffix(b"}\n\n") + b',"sequence_number":'


class NumberedEvents:
    """Writes the events of one response and numbers them from 0."""

    def __init__(self) -> None:
        self._next_number = 0

    def write(self, kind: str, **fields: Any) -> bytes:
        """One event."""
        number = self._next_number
        self._next_number = number + 1
        return event(kind, sequence_number=number, **fields)

    def delta(self, template: DeltaTemplate, text: str) -> bytes:
        """One delta event. This is the hot path."""
        number = self._next_number
        self._next_number = number + 1
        return template.prefix + orjson.dumps(text) + template.suffix + b"%d}\n\n" % number


class OutputItem(ABC):
    """One output item. It collects its text, and writes the events of its beginning and end.

    Args:
        events: numbers the events of the whole response.
        response_id: the response.
        index: the place in its output.
    """

    kind: str
    id_kind: str

    def __init__(self, events: NumberedEvents, response_id: str, index: int) -> None:
        self.events = events
        self.id = output_item_id(self.id_kind, response_id, index)
        self.index = index
        self.pieces: list[str] = []
        self.place = {"item_id": self.id, "output_index": index}
        self.template = self.delta_template()

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)

    def add(self, text: str) -> bytes:
        """Append text. Returns its event."""
        self.pieces.append(text)
        return self.events.delta(self.template, text)

    def opening(self) -> bytes:
        """The events before the first delta."""
        return self.events.write("response.output_item.added", output_index=self.index, item=self.json("in_progress"))

    def closing(self, status: str) -> bytes:
        """The events after the last delta.

        Args:
            status: completed or incomplete.
        """
        return self.events.write("response.output_item.done", output_index=self.index, item=self.json(status))

    @abstractmethod
    def json(self, status: str) -> dict[str, Any]:
        """The item; without content while it is in progress."""

    @abstractmethod
    def delta_template(self) -> DeltaTemplate:
        """The template of its delta events."""


class Message(OutputItem):
    """A message of the assistant, with one part of text."""

    kind, id_kind = "message", "msg"

    def __init__(self, events: NumberedEvents, response_id: str, index: int, with_logprobs: bool) -> None:
        super().__init__(events, response_id, index)
        self.place |= {"content_index": 0}
        self._with_logprobs = with_logprobs
        self._logprobs: list[dict[str, Any]] = []
        #: Set when it is known: commentary before a call, else final_answer.
        self.phase: str | None = None

    def delta_template(self) -> DeltaTemplate:
        return DeltaTemplate("response.output_text.delta", {**self.place, "content_index": 0, "logprobs": []})

    def add_with_logprobs(self, text: str, entries: list[generation_pb2.TokenLogprob]) -> bytes:
        """Append text with the log probabilities of its tokens. Returns its event."""
        logprobs = tokens_json(entries)
        self.pieces.append(text)
        self._logprobs += logprobs
        return self.events.write("response.output_text.delta", **self.place, delta=text, logprobs=logprobs)

    def opening(self) -> bytes:
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return super().opening() + self.events.write("response.content_part.added", **self.place, part=part)

    def closing(self, status: str) -> bytes:
        written = self.events.write("response.output_text.done", **self.place, text=self.text, logprobs=self._logprobs)
        written += self.events.write("response.content_part.done", **self.place, part=self._part())
        return written + super().closing(status)

    def json(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part()]
        phase = {} if self.phase is None else {"phase": self.phase}
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content, **phase}

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self._logprobs}


class Reasoning(OutputItem):
    """What the model thinks, as content or as a summary that leaves nothing out.

    Args:
        is_summary: whether the client asked for a summary.
        is_sealed: whether the client asked for the opaque form, too.
    """

    kind, id_kind = "reasoning", "rs"

    def __init__(self, events: NumberedEvents, response_id: str, index: int, is_summary: bool, is_sealed: bool) -> None:
        self._is_summary, self._is_sealed = is_summary, is_sealed
        super().__init__(events, response_id, index)
        self.place |= self._part_place

    def delta_template(self) -> DeltaTemplate:
        kind = "response.reasoning_summary_text.delta" if self._is_summary else "response.reasoning_text.delta"
        return DeltaTemplate(kind, self.place | self._part_place)

    def opening(self) -> bytes:
        kind = "response.reasoning_summary_part.added" if self._is_summary else "response.content_part.added"
        return super().opening() + self.events.write(kind, **self.place, part=self._part(""))

    def closing(self, status: str) -> bytes:
        kinds = ("reasoning_summary_text", "reasoning_summary_part") if self._is_summary else ("reasoning_text", "content_part")
        written = self.events.write(f"response.{kinds[0]}.done", **self.place, text=self.text)
        written += self.events.write(f"response.{kinds[1]}.done", **self.place, part=self._part(self.text))
        return written + super().closing(status)

    def json(self, status: str) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self.id, "type": "reasoning", "status": status, "summary": [], "content": []}
        if status != "in_progress":
            item["summary" if self._is_summary else "content"] = [self._part(self.text)]
            if self._is_sealed:
                item["encrypted_content"] = seal(self.text)
        return item

    @property
    def _part_place(self) -> dict[str, int]:
        return {"summary_index": 0} if self._is_summary else {"content_index": 0}

    def _part(self, text: str) -> dict[str, str]:
        return {"type": "summary_text" if self._is_summary else "reasoning_text", "text": text}


class FunctionCall(OutputItem):
    """A call of a function.

    Args:
        call: its first piece.
    """

    kind, id_kind = "function_call", "fc"

    def __init__(self, events: NumberedEvents, response_id: str, index: int, call: generation_pb2.ToolCallDelta) -> None:
        super().__init__(events, response_id, index)
        self.number, self._call_id, self._name = call.index, call.id, call.name
        #: It cannot be made.
        self.is_incomplete = False

    def delta_template(self) -> DeltaTemplate:
        return DeltaTemplate("response.function_call_arguments.delta", self.place)

    def closing(self, status: str) -> bytes:
        done = self.events.write("response.function_call_arguments.done", **self.place, name=self._name, arguments=self.text)
        return done + super().closing(status)

    def json(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": "" if status == "in_progress" else self.text,
        }
