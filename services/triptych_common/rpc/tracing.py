"""Traces and the contracts: where messages and metadata carry a call's place in its trace, and what spans take from messages."""

from __future__ import annotations

from collections.abc import Mapping

from triptych.v1 import common_pb2

from triptych_common.telemetry import attributes as names
from triptych_common.telemetry.span import Value
from triptych_common.telemetry.trace_context import TRACEPARENT, TRACESTATE, TraceContext, parse_trace_context, trace_var

Metadata = tuple[tuple[str, str], ...]
_MODALITIES = {common_pb2.MODALITY_IMAGE: "image", common_pb2.MODALITY_AUDIO: "audio", common_pb2.MODALITY_VIDEO: "video"}


def call_context(tenant: str, trace: TraceContext | None) -> common_pb2.CallContext:
    """The message that says on whose behalf, and for which trace, a call is made."""
    if trace is None:
        return common_pb2.CallContext(tenant=tenant)
    return common_pb2.CallContext(tenant=tenant, traceparent=trace.traceparent, tracestate=trace.tracestate)


def trace_of(context: common_pb2.CallContext | None) -> TraceContext | None:
    """The caller's place in its trace; None if the caller named none, or no valid one."""
    if context is None or not context.traceparent:
        return None
    return parse_trace_context(context.traceparent, context.tracestate)


def trace_in(metadata: Mapping[str, str | bytes]) -> TraceContext | None:
    """The caller's place in its trace, from the metadata of its call; None if there is no valid one."""
    traceparent, tracestate = metadata.get(TRACEPARENT), metadata.get(TRACESTATE)
    if not isinstance(traceparent, str):
        return None
    return parse_trace_context(traceparent, tracestate if isinstance(tracestate, str) else None)


def trace_metadata(trace: TraceContext | None = None) -> Metadata:
    """The metadata that carries a place in a trace to another service.

    Args:
        trace: by default what the current task works for.
    """
    trace = trace or trace_var.get()
    if trace is None:
        return ()
    traceparent = (TRACEPARENT, trace.traceparent)
    return (traceparent, (TRACESTATE, trace.tracestate)) if trace.tracestate else (traceparent,)


def usage_attributes(usage: common_pb2.Usage) -> dict[str, Value]:
    """What a call consumed, as attributes of a span. Counts that most calls do not have are left out where they are 0."""
    noted: dict[str, Value] = {
        names.GEN_AI_USAGE_INPUT_TOKENS: usage.prompt_tokens,
        names.GEN_AI_USAGE_OUTPUT_TOKENS: usage.completion_tokens,
    }
    if usage.cached_tokens:
        noted[names.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS] = usage.cached_tokens
    if usage.reasoning_tokens:
        noted[names.GEN_AI_USAGE_REASONING_OUTPUT_TOKENS] = usage.reasoning_tokens
    return noted


def finish_reason_name(reason: common_pb2.FinishReason) -> str:
    """Why a sequence ended, as spans say it: stop, length, abort or error."""
    return common_pb2.FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()


def modality_name(modality: common_pb2.Modality) -> str:
    """What a media item is, as spans say it: image, audio, video, or else media."""
    return _MODALITIES.get(modality, "media")
