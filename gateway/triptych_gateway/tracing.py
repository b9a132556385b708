"""What the spans of HTTP requests say. It is noted where it is known; for a request without a span nothing is noted."""

from __future__ import annotations

import time
from collections.abc import Sequence

from triptych.v1 import common_pb2
from triptych_common.rpc.tracing import finish_reason_name, usage_attributes
from triptych_common.telemetry import attributes as names
from triptych_common.telemetry.tracing import request_span_var

from triptych_gateway.redaction import excerpt

_NS = 1e9


def note_call(operation: str, model: str, num_choices: int = 1, *, is_stream: bool = False) -> None:
    """Note what the request asks of a model.

    Args:
        operation: as the semantic conventions call it: chat, text_completion, embeddings.
    """
    if (span := request_span_var.get()) is None:
        return
    span.attributes |= {
        names.GEN_AI_PROVIDER_NAME: names.PROVIDER,
        names.GEN_AI_OPERATION_NAME: operation,
        names.GEN_AI_REQUEST_MODEL: excerpt(model),
    }
    if is_stream:
        span.attributes[names.GEN_AI_REQUEST_STREAM] = True
    if num_choices > 1:
        span.attributes[names.GEN_AI_REQUEST_CHOICE_COUNT] = num_choices


def note_first_event() -> None:
    """Note that the first event of a stream is about to be sent."""
    if (span := request_span_var.get()) is not None:
        span.attributes[names.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK] = (time.time_ns() - span.start_ns) / _NS


def note_usage(usage: common_pb2.Usage, finish_reasons: Sequence[common_pb2.FinishReason] = ()) -> None:
    """Note what a complete answer consumed, and why its choices ended."""
    if (span := request_span_var.get()) is None:
        return
    noted = span.attributes
    noted[names.GEN_AI_RESPONSE_MODEL] = noted.get(names.GEN_AI_REQUEST_MODEL, "")
    noted |= usage_attributes(usage)
    if finish_reasons:
        noted[names.GEN_AI_RESPONSE_FINISH_REASONS] = [finish_reason_name(reason) for reason in finish_reasons]


def note_error(code: str, status: int) -> None:
    """Note the error that the client got.

    Args:
        status: of HTTP. The span of a request that is itself at fault is none of a failure, as the semantic conventions say.
    """
    if (span := request_span_var.get()) is not None:
        span.error, span.is_failure = code, status >= 500
