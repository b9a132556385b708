"""What spans of encoder and engine say: work that several requests share, failures, preemptions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from support.drivers.encoder_of_fakes import encoder_of_fakes
from support.drivers.engine_service import Session, a_message, an_engine
from support.fakes.spans import KeptSpans
from support.waiting import until
from triptych.v1 import encoder_pb2
from triptych_common.telemetry import attributes as names
from triptych_common.telemetry.tracing import Tracer

SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_a_request_for_too_many_sequences_makes_no_spans() -> None:
    kept = KeptSpans()
    async with an_engine(Tracer(kept)) as engine:
        message = traced("r")
        message.n = 2**32 - 1
        session = Session(engine.stub)
        await session.open()
        await session.add(message)
        assert (await session.read()).outputs[0].error.field == "n"
        session.call.cancel()
    assert not kept.spans


async def test_an_item_that_two_requests_wait_for_links_to_the_one_that_computes_it() -> None:
    kept = KeptSpans()
    async with encoder_of_fakes(gated=True, tracer=Tracer(kept)) as served:

        def encode(trace_id: str) -> Any:
            request = encoder_pb2.EncodeRequest(items=[served.item(b"same")])
            return served.client.stub.Encode(request, metadata=[("traceparent", f"00-{trace_id}-00f067aa0ba902b7-01")])

        first = asyncio.ensure_future(encode("a" * 32))
        await until(lambda: served.pipeline.counters.num_misses == 1)
        second = asyncio.ensure_future(encode("b" * 32))
        await until(lambda: served.pipeline.counters.num_joined == 1)
        assert served.tower.gate is not None
        served.tower.gate.release(1)
        await asyncio.gather(first, second)
    miss, joined = (next(one for one in kept.spans if one.attributes.get(names.MEDIA_TIER) == tier) for tier in ("miss", "joined"))
    assert f"{miss.context.trace_id:x}" == "a" * 32
    assert f"{joined.context.trace_id:x}" == "b" * 32
    assert list(joined.links) == [miss.context]
    assert not miss.links
    stages = [span for span in kept.spans if span.parent in (miss.context, joined.context)]
    assert "decode" in {span.name for span in stages}
    assert all(span.parent == miss.context for span in stages), "it was computed once"


async def test_an_item_that_fails_says_so_and_a_question_for_a_key_is_no_work() -> None:
    kept = KeptSpans()
    async with encoder_of_fakes(tracer=Tracer(kept)) as served:
        metadata = [("traceparent", SAMPLED)]
        items = [served.item(b"bad one"), served.item(b"not here", with_data=False)]
        await served.client.stub.Encode(encoder_pb2.EncodeRequest(items=items), metadata=metadata)
        assert [(span.name, span.error) for span in kept.spans] == [("encode image", "INVALID_REQUEST")]
        await served.client.stub.Encode(encoder_pb2.EncodeRequest(items=[served.item(b"fine")]))
        assert len(kept.spans) == 1, "without a caller's trace there is none: only gateways and frontends begin traces"


async def run(engine: Any, requests: Sequence[Any]) -> Session:
    session = Session(engine.stub)
    await session.open()
    await session.add(*requests)
    await session.until_ended(*(request.request_id for request in requests))
    session.call.cancel()
    return session


def traced(request_id: str, **options: Any) -> Any:
    message = a_message(request_id, **options)
    message.context.traceparent = SAMPLED
    return message


async def test_preemptions_are_events_of_their_sequence() -> None:
    kept = KeptSpans()
    async with an_engine(Tracer(kept)) as engine:
        # Together they need more than the 64 blocks of 4 tokens.
        requests = [traced(f"r{number}", prompt=[number + 1] * 20, max_tokens=60) for number in range(6)]
        session = await run(engine, requests)
        await until(lambda: sum(span.name == "sequence" for span in kept.spans) == len(requests))
    counts = {request_id: last.timings.num_preemptions for request_id, last in session.last.items()}
    assert any(counts.values()), "there was no preemption to see"
    for span in kept.spans:
        if span.name == "sequence":
            times_ns = [at_ns for name, at_ns in span.events if name == names.PREEMPTED]
            assert len(times_ns) == len(span.events) == counts[str(span.attributes[names.REQUEST_ID])]
            assert sorted(times_ns) == times_ns
            assert all(span.start_ns < at_ns < span.end_ns for at_ns in times_ns)


async def test_a_sequence_that_fails_in_the_engine_says_so() -> None:
    kept = KeptSpans()
    async with an_engine(Tracer(kept)) as engine:
        engine.runner.fail_requests.add("bad")
        await run(engine, [traced("bad"), traced("good"), a_message("untraced")])
        await until(lambda: sum(span.name == "sequence" for span in kept.spans) == 2)
    found = {str(span.attributes[names.REQUEST_ID]): span for span in kept.spans if span.name == "sequence"}
    assert {request_id: span.error for request_id, span in found.items()} == {"bad": "INTERNAL", "good": ""}
    assert {span.name for span in kept.spans if span.parent == found["bad"].context} == set()
