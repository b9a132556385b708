"""W3C Trace Context: the place of a piece of work in a trace, as `traceparent` and `tracestate` carry it between processes.

https://www.w3.org/TR/trace-context/, level 1.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass

#: Names of HTTP headers and of gRPC metadata.
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
#: The specification asks to carry at least so much. Longer ones are dropped.
MAX_TRACESTATE_CHARS = 512
_MAX_MEMBERS = 32
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER = re.compile(
    r"([a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A trace, and the span in it that is the parent of further ones."""

    #: 128 bits, not 0.
    trace_id: int
    #: 64 bits, not 0.
    span_id: int
    #: Whether the spans of this trace are exported.
    is_sampled: bool
    #: Other systems' entries, carried unchanged.
    tracestate: str = ""

    @property
    def traceparent(self) -> str:
        """The value of the header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.is_sampled:02x}"


#: Where in its trace the current task works; None outside of traced requests.
trace_var: ContextVar[TraceContext | None] = ContextVar("trace", default=None)


def parse_trace_context(traceparent: str | None, tracestate: str | None = None) -> TraceContext | None:
    """What the two headers say. None if there is no valid `traceparent`; an invalid `tracestate` counts as empty."""
    match = _TRACEPARENT.fullmatch(traceparent.strip(" \t")) if traceparent else None
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    # Later versions may append fields, version 0 has none. Version ff is forbidden.
    if version == "ff" or (version == "00" and rest is not None):
        return None
    context = TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED), _checked_state(tracestate))
    return context if context.trace_id and context.span_id else None


def _checked_state(tracestate: str | None) -> str:
    # Only spaces can make a valid one longer. To split a message's megabytes would stop the event loop.
    if tracestate is None or len(tracestate) > 2 * MAX_TRACESTATE_CHARS:
        return ""
    members = [member.strip(" \t") for member in tracestate.split(",")]
    members = [member for member in members if member]
    keys = {member.partition("=")[0] for member in members}
    if len(members) > _MAX_MEMBERS or len(keys) < len(members) or not all(map(_MEMBER.fullmatch, members)):
        return ""
    joined = ",".join(members)
    return joined if len(joined) <= MAX_TRACESTATE_CHARS else ""
