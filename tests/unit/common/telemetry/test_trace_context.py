"""The headers of W3C Trace Context."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triptych_common.telemetry.trace_context import MAX_TRACESTATE_CHARS, TraceContext, parse_trace_context

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE_ID}-{SPAN_ID}-01"


def test_the_specifications_own_example() -> None:
    context = parse_trace_context(VALID, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
    assert context == TraceContext(int(TRACE_ID, 16), int(SPAN_ID, 16), True, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
    assert context.traceparent == VALID


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_written_is_read(trace_id: int, span_id: int, is_sampled: bool) -> None:
    context = TraceContext(trace_id, span_id, is_sampled)
    assert parse_trace_context(context.traceparent) == context


@pytest.mark.parametrize(
    ("traceparent", "is_sampled"),
    [
        (f"00-{TRACE_ID}-{SPAN_ID}-00", False),
        (f"00-{TRACE_ID}-{SPAN_ID}-03", True),  # further flags are not ours
        (f"00-{TRACE_ID}-{SPAN_ID}-02", False),
        (f"01-{TRACE_ID}-{SPAN_ID}-01", True),  # a later version is read like the first
        (f"cc-{TRACE_ID}-{SPAN_ID}-01-what-the-future-will-be-like", True),
        (f" {VALID}\t", True),
    ],
)
def test_valid_headers(traceparent: str, is_sampled: bool) -> None:
    context = parse_trace_context(traceparent)
    assert context == TraceContext(int(TRACE_ID, 16), int(SPAN_ID, 16), is_sampled)


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        "00",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",  # forbidden
        f"00-{TRACE_ID}-{SPAN_ID}-01-more",  # version 0 has no further fields
        f"01-{TRACE_ID}-{SPAN_ID}-01more",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
        f"00-{TRACE_ID[1:]}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{SPAN_ID}",
        f"00_{TRACE_ID}_{SPAN_ID}_01",
        f"00-{TRACE_ID}-{SPAN_ID}-0x",
        VALID.replace("4", "\u0664"),  # a digit, but none of ASCII
        f"{VALID}\n",
    ],
)
def test_invalid_headers_are_no_trace(traceparent: str | None) -> None:
    assert parse_trace_context(traceparent) is None


@given(st.text(), st.text())
def test_no_text_is_an_error(traceparent: str, tracestate: str) -> None:
    parse_trace_context(traceparent, tracestate)
    context = parse_trace_context(VALID, tracestate)
    assert context is not None
    assert context.tracestate.isascii()
    assert context.tracestate.isprintable()


KEYS = st.from_regex(r"[a-z][a-z0-9_*/-]{0,20}(?![\s\S])|[a-z0-9][a-z0-9_*/-]{0,10}@[a-z][a-z0-9]{0,5}(?![\s\S])", fullmatch=True)
VALUES = st.from_regex(r"[ -+\--<>-~]{0,20}[!-+\--<>-~]", fullmatch=True)


@given(st.dictionaries(KEYS, VALUES, max_size=8))
def test_valid_members_are_kept_in_order(members: dict[str, str]) -> None:
    given_state = " , ".join(f"{key}={value}" for key, value in members.items())
    context = parse_trace_context(VALID, given_state)
    assert context is not None
    # White space around members is none of theirs.
    expected = ",".join(f"{key}={value}".strip() for key, value in members.items())
    assert context.tracestate == (expected if len(expected) <= MAX_TRACESTATE_CHARS else "")


@pytest.mark.parametrize(
    "tracestate",
    [
        "no-value",
        "=value",
        "Upper=1",
        "a=1,a=2",  # twice the same key
        "a=1,b=x=y",
        "a=\u00e9",
        "a=1\x00",
        f"{'k' * 257}=1",
        f"a={'v' * 257}",
        ",".join(f"k{number}=1" for number in range(33)),
        ",".join(f"k{number}={'v' * 100}" for number in range(6)),  # too long to be carried
        "@b=1",
    ],
)
def test_an_invalid_state_does_not_spoil_the_trace(tracestate: str) -> None:
    context = parse_trace_context(VALID, tracestate)
    assert context is not None
    assert context.tracestate == ""
    assert context.traceparent == VALID


def test_empty_members_are_left_out() -> None:
    context = parse_trace_context(VALID, "a=1,, ,b=2,")
    assert context is not None
    assert context.tracestate == "a=1,b=2"


def test_the_length_of_a_state_is_limited() -> None:
    def carried(tracestate: str) -> str:
        context = parse_trace_context(VALID, tracestate)
        assert context is not None
        return context.tracestate

    longest = f"a={'v' * 254},b={'v' * 253}"
    assert len(longest) == MAX_TRACESTATE_CHARS
    assert carried(longest) == longest
    assert carried(f"{longest}v") == ""
    # Spaces around members do not count, but are not read without end.
    assert carried(longest.replace(",", " " * MAX_TRACESTATE_CHARS + ",")) == longest
    assert carried(longest.replace(",", " " * (MAX_TRACESTATE_CHARS + 1) + ",")) == ""
