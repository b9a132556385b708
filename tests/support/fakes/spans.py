"""Where spans go in tests that need no collector."""

from __future__ import annotations

from triptych_common.telemetry.span import Span


class KeptSpans:
    """A sink of a `Tracer` that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.num_dropped = 0
        self.is_closed = False

    def put(self, span: Span) -> None:
        self.spans.append(span)

    def close(self) -> None:
        self.is_closed = True

    def named(self, name: str) -> Span:
        """The only span of this name."""
        (found,) = (span for span in self.spans if span.name == name)
        return found
