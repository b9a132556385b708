"""Server-sent events of a response, each with its sequence number."""

from __future__ import annotations

from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"
#: Placeholder for the text in a template.
_TEXT = "\0"


class DeltaTemplate:
    """The constant parts of a delta event. An event is then `prefix + text + suffix + number + end`.

    Args:
        kind: the type of the event.
        fields: all its fields but `delta` and `sequence_number`.
    """

    def __init__(self, kind: str, fields: dict[str, Any]) -> None:
        event = orjson.dumps({"type": kind, **fields, "delta": _TEXT})
        before, after = event.split(orjson.dumps(_TEXT))
        self.prefix = b"event: " + kind.encode() + b"\ndata: " + before
        self.suffix = after[:-1] + b',"sequence_number":'


class EventWriter:
    """Writes the events of one response and numbers them from 0."""

    def __init__(self) -> None:
        self._next_number = 0

    def write(self, kind: str, **fields: Any) -> bytes:
        """One event."""
        event = orjson.dumps({"type": kind, "sequence_number": self._next_number, **fields})
        self._next_number += 1
        return b"event: " + kind.encode() + b"\ndata: " + event + b"\n\n"

    def delta(self, template: DeltaTemplate, text: str) -> bytes:
        """One delta event. This is the hot path."""
        number = self._next_number
        self._next_number = number + 1
        return template.prefix + orjson.dumps(text) + template.suffix + b"%d}\n\n" % number


def split_events(written: bytes) -> list[bytes]:
    """The single events of one or several that were written together. JSON on one line has no empty line, so this is exact."""
    return [event + b"\n\n" for event in written.split(b"\n\n") if event]


def data_of(event: bytes) -> bytes:
    """The JSON of one event."""
    return event.partition(b"data: ")[2].removesuffix(b"\n\n")
