"""The spans of sequences: of each one in the engine, and in it of its time in the queue, its prompt and its output."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.v1 import engine_pb2
from triptych_common.rpc.tracing import trace_of
from triptych_common.telemetry import attributes as names
from triptych_common.telemetry.span import Span, SpanKind
from triptych_common.telemetry.tracing import Tracer

from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import FinishReason, Request

_NS = 1_000_000_000


def begin_sequences(tracer: Tracer, message: engine_pb2.EngineRequest, requests: Sequence[Request], start_ns: int) -> list[Span]:
    """The spans of a request's sequences; none if it is not traced.

    Args:
        start_ns: when the message arrived.
    """
    parent = trace_of(message.context)
    spans = []
    for index in range(len(requests)):
        span = tracer.child("sequence", parent, SpanKind.SERVER, start_ns)
        if span is None:
            return []
        span.attributes[names.REQUEST_ID] = message.request_id
        if index:
            span.attributes[names.SEQUENCE_INDEX] = index
        spans.append(span)
    trace_media(spans, requests)
    return spans


def trace_media(spans: Sequence[Span], requests: Sequence[Request]) -> None:
    """Make fetches of embeddings a part of the spans of the sequences that order them."""
    for span, request in zip(spans, requests, strict=False):
        for item in request.media.items:
            item.trace = span.context


def end_sequence(tracer: Tracer, span: Span, output: SequenceOutput) -> None:
    """Export the span of a sequence, and those of its stages.

    Args:
        output: the last one.
    """
    noted, timings = span.attributes, output.timings
    if output.finish_reason is not None:
        noted[names.GEN_AI_RESPONSE_FINISH_REASONS] = [output.finish_reason.value]
    if output.usage is not None:
        prompt_tokens, completion_tokens, cached_tokens = output.usage
        noted |= {
            names.GEN_AI_USAGE_INPUT_TOKENS: prompt_tokens,
            names.GEN_AI_USAGE_OUTPUT_TOKENS: completion_tokens,
            names.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: cached_tokens,
        }
    if output.media is not None:
        sources = [fetch.source.value if fetch.source is not None else "none" for fetch in output.media.fetches]
        noted[names.MEDIA_SOURCES] = sources
    if output.error is not None:
        span.fail(output.error)
    if timings is not None and timings.preempted_s:
        noted[names.NUM_PREEMPTIONS] = timings.num_preemptions
        span.events = [(names.PREEMPTED, span.start_ns + round(at_s * _NS)) for at_s in timings.preempted_s]
    tracer.end(span)
    if timings is not None and output.finish_reason is not FinishReason.ERROR:
        tracer.stages(span, [("queue", timings.queue_s), ("prefill", timings.prefill_s), ("decode", timings.decode_s)])
