"""A span, and where it goes when it has ended. `Tracer` makes spans (tracing.py), `OtlpSink` exports them (export.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from triptych.errors import InternalError, TriptychError

from triptych_common.telemetry.attributes import CANCELLED
from triptych_common.telemetry.trace_context import TraceContext

#: Of an attribute.
Value = str | bool | int | float | Sequence[str]


class SpanKind(Enum):
    """The side of a call that a span describes."""

    INTERNAL = "internal"
    #: The work for a call of another process.
    SERVER = "server"
    #: A call to another process, from its beginning to its end.
    CLIENT = "client"


@dataclass(eq=False, slots=True)
class Span:
    """A span that will be exported. Times are in nanoseconds since 1970."""

    name: str
    kind: SpanKind
    context: TraceContext
    parent: TraceContext | None
    start_ns: int
    attributes: dict[str, Value] = field(default_factory=dict)
    #: Name and time of each event.
    events: Sequence[tuple[str, int]] = ()
    #: Spans of other traces that did some of this work.
    links: Sequence[TraceContext] = ()
    #: Why the work failed, as programs call it; empty if it did not.
    error: str = ""
    #: Whether the error makes the span one of a failure. It does not where the caller was at fault and a convention says so.
    is_failure: bool = True
    end_ns: int = 0

    def fail(self, error: BaseException) -> None:
        """Note the exception with which the work ended."""
        if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            self.attributes[CANCELLED] = True
        else:
            self.error = error.reason if isinstance(error, TriptychError) else InternalError.reason


class SpanSink(Protocol):
    """Where spans go that have ended."""

    @property
    def num_dropped(self) -> int: ...
    def put(self, span: Span) -> None: ...
    def close(self) -> None: ...
