"""The spans of media items in the encoder: of their encoding, and of their way to engines."""

from __future__ import annotations

import time

from triptych.errors import MediaNotFoundError
from triptych.v1 import common_pb2, encoder_pb2
from triptych_common.rpc.tracing import modality_name
from triptych_common.telemetry import attributes as names
from triptych_common.telemetry.logs import request_id_var
from triptych_common.telemetry.span import SpanKind
from triptych_common.telemetry.trace_context import TraceContext, trace_var
from triptych_common.telemetry.tracing import Tracer

from triptych_encoder.pipeline import LeasedItem


class ItemTrace:
    """The span of one item that a caller wants encoded, and its stages."""

    def __init__(self, tracer: Tracer, key: bytes, modality: common_pb2.Modality) -> None:
        self._tracer = tracer
        self._span = tracer.child(f"encode {modality_name(modality)}", trace_var.get(), SpanKind.SERVER)
        if self._span is not None:
            self._span.attributes |= {
                names.REQUEST_ID: request_id_var.get(),
                names.MEDIA_MODALITY: modality_name(modality),
                names.MEDIA_KEY: key[:6].hex(),
            }

    @property
    def context(self) -> TraceContext | None:
        """The parent of further spans, and what other traces link to. None if the item is not traced."""
        return None if self._span is None else self._span.context

    def end(self, leased: LeasedItem) -> None:
        """Note that the caller gets the embeddings."""
        span = self._span
        if span is None:
            return
        span.attributes |= {
            names.MEDIA_NUM_TOKENS: leased.item.num_tokens,
            names.MEDIA_NUM_BYTES: leased.item.num_bytes,
            names.MEDIA_TIER: encoder_pb2.CacheTier.Name(leased.tier).removeprefix("CACHE_TIER_").lower(),
        }
        if leased.computed_in is not None and leased.computed_in != span.context:
            # Another request had it computed, and has the stages.
            span.links = [leased.computed_in]
        self._tracer.end(span)
        if leased.computed_in == span.context:
            times = leased.times
            before = [("queue", times.queue_s), ("decode", times.decode_s), ("preprocess", times.preprocess_s)]
            self._tracer.stages(span, [*before, ("tower", times.encode_s)])

    def fail(self, error: BaseException) -> None:
        """Note that the item was refused or failed. A question for a key that is not held is no work, and has no span."""
        if self._span is not None and not isinstance(error, MediaNotFoundError):
            self._span.fail(error)
            self._tracer.end(self._span)


class FetchTrace:
    """The span of one call that fetches embeddings, and the time in it that it waits for them."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._span = tracer.child("fetch", trace_var.get(), SpanKind.SERVER)
        self._found_ns = 0
        self.num_bytes = 0

    def found(self) -> None:
        """Note that the embeddings of the next item are there."""
        if self._span is not None:
            self._found_ns = time.time_ns()

    def fail(self, error: BaseException) -> None:
        """Note that an item cannot be had, or that the call was cancelled."""
        if self._span is not None:
            self._span.fail(error)

    def end(self) -> None:
        """Note that all was sent."""
        if (span := self._span) is None:
            return
        span.attributes[names.MEDIA_NUM_BYTES] = self.num_bytes
        if self._found_ns:
            span.events = [(names.FOUND, self._found_ns)]
        self._tracer.end(span)
