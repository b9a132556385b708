"""The spans of one generation: of the call, and in it of its preparation and of its time in engines."""

from __future__ import annotations

import time
from collections.abc import Sequence

from triptych.errors import TriptychError
from triptych.v1 import common_pb2
from triptych_common.rpc.tracing import finish_reason_name, usage_attributes
from triptych_common.telemetry import attributes as names
from triptych_common.telemetry.span import Span, SpanKind
from triptych_common.telemetry.trace_context import TraceContext, trace_var
from triptych_common.telemetry.tracing import Tracer

_NS = 1e9


class CallTrace:
    """The place of one call in its trace. The current task works for it from now on.

    Args:
        operation: as the semantic conventions call it: chat or text_completion.
        parent: the caller's place; None if it named none.
    """

    def __init__(self, tracer: Tracer, operation: str, model: str, parent: TraceContext | None) -> None:
        self._tracer = tracer
        self.context, self._span = tracer.begin(f"{operation} {model}", parent)
        self._engine: Span | None = None
        trace_var.set(self.context)
        if self._span is not None:
            self._span.attributes |= {
                names.GEN_AI_PROVIDER_NAME: names.PROVIDER,
                names.GEN_AI_OPERATION_NAME: operation,
                names.GEN_AI_REQUEST_MODEL: model,
            }

    def fail(self, error: BaseException) -> None:
        """Note that the call has ended before an engine got it."""
        if self._span is not None:
            self._span.fail(error)
            self._end(self._span)

    def prepared(self, preprocess_s: float, num_choices: int) -> TraceContext | None:
        """Note that the call goes to an engine. Returns the parent of the engine's spans.

        Args:
            preprocess_s: time of its preparation, in seconds.
        """
        if self._span is None:
            return self.context
        if num_choices > 1:
            self._span.attributes[names.GEN_AI_REQUEST_CHOICE_COUNT] = num_choices
        start_ns = max(self._span.start_ns, time.time_ns() - round(preprocess_s * _NS))
        if (preprocess := self._tracer.child("preprocess", self.context, start_ns=start_ns)) is not None:
            self._tracer.end(preprocess)
        self._engine = self._tracer.child("engine", self.context, SpanKind.CLIENT)
        return self.context if self._engine is None else self._engine.context

    def end(
        self,
        usage: common_pb2.Usage,
        finish_reasons: Sequence[common_pb2.FinishReason],
        error: TriptychError | None,
        *,
        is_cancelled: bool,
    ) -> None:
        """Note that the call has ended.

        Args:
            finish_reasons: of the choices that have ended.
        """
        span = self._span
        if span is None:
            return
        noted = span.attributes
        noted[names.GEN_AI_RESPONSE_MODEL] = noted[names.GEN_AI_REQUEST_MODEL]
        noted |= usage_attributes(usage)
        if finish_reasons:
            noted[names.GEN_AI_RESPONSE_FINISH_REASONS] = [finish_reason_name(reason) for reason in finish_reasons]
        if is_cancelled:
            noted[names.CANCELLED] = True
        if error is not None:
            span.fail(error)
        self._end(span)

    def _end(self, span: Span) -> None:
        """End the span of the call, and that of its time in engines."""
        if self._engine is not None:
            self._engine.error = span.error
            self._tracer.end(self._engine)
        self._tracer.end(span)

    @property
    def is_recorded(self) -> bool:
        """Whether the spans are exported."""
        return self._span is not None
