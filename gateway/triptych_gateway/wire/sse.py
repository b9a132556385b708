"""Server-sent events."""

from __future__ import annotations

from typing import Any

import orjson

#: The content type of a stream of events.
CONTENT_TYPE = b"text/event-stream; charset=utf-8"
#: OpenAI's end of a stream.
DONE = b"data: [DONE]\n\n"
#: Stands for the text of a delta in an event that is written once, as a template.
TEXT = "\0"


def event(kind: str, **fields: Any) -> bytes:
    """An event whose data repeats its name as `type`."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


def around_text(template: bytes) -> tuple[bytes, bytes]:
    """What stands before and after `TEXT` in an event. Between them, the JSON of each new text makes an event."""
    before, after = template.split(orjson.dumps(TEXT))
    return before, after


def split_events(written: bytes) -> list[bytes]:
    """The single events of one or several that were written together. JSON on one line has no empty line, so this is exact."""
    return [event + b"\n\n" for event in written.split(b"\n\n") if event]


def data_of(event: bytes) -> bytes:
    """The data of one event."""
    return event.partition(b"data: ")[2].removesuffix(b"\n\n")
