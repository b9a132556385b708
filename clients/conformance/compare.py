"""Compares what came of a call with what must come of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf.message import Message
from triptych.mock.v1 import mock_pb2

from conformance.pb import conformance_pb2

_TOLERANCE = 1e-6


def differences(
    expected: conformance_pb2.Expected,
    outcome: conformance_pb2.Outcome,
    seen: Sequence[mock_pb2.SeenCall] | None,
    elapsed_s: float,
    *,
    is_direct: bool = True,
) -> list[str]:
    """What is wrong, one line each; empty if the case passes.

    Args:
        seen: what the mock saw; None against a real stack.
        is_direct: no gateway is between. One carries calls on a session, and uploads large files before them.
    """
    if not is_direct:
        expected = _behind_gateway(expected)
    found = [*_compare("outcome", expected.outcome, outcome)]
    if outcome.HasField("error") and not expected.outcome.HasField("error"):
        error = outcome.error
        found.append(f"the call failed: {outcome.error_class} code={error.code} reason={error.reason!r} {error.message!r}")
    if expected.outcome.HasField("error") and not expected.outcome.error.reason and outcome.error.reason:
        found.append(f"outcome.error.reason: expected none, got {outcome.error.reason!r}")
    if expected.text and (given := answer_text(outcome)) != expected.text:
        found.append(f"text: expected {_short(expected.text)}, got {_short(given)}")
    if seen is not None and (expected.seen or expected.min_longest_send_s):
        found += _compare_lists("seen", expected.seen, seen) if expected.seen else ()
        longest_s = seen[-1].longest_send_s if seen else 0.0
        if longest_s < expected.min_longest_send_s:
            wanted_s = expected.min_longest_send_s
            found.append(f"the server did not wait for the reader: its longest send took {longest_s:.2f} s, not {wanted_s:g} s")
    for path in expected.present:
        root, _, rest = path.partition(".")
        if root == "seen" and seen is None:
            continue
        if not (_is_present(seen or (), rest) if root == "seen" else _is_present(outcome, path)):
            found.append(f"{path} is missing")
    if expected.max_s and elapsed_s > expected.max_s:
        found.append(f"it took {elapsed_s:.1f} s, more than {expected.max_s:g} s")
    return found


def _behind_gateway(expected: conformance_pb2.Expected) -> conformance_pb2.Expected:
    """Without what a gateway changes on the way to the mock."""
    result = conformance_pb2.Expected()
    result.CopyFrom(expected)
    for call in result.seen:
        for field in ("method", "media_bytes", "timeout_s"):
            call.ClearField(field)
    del result.present[:]
    result.present.extend(path for path in expected.present if not path.startswith("seen."))
    return result


def answer_text(outcome: conformance_pb2.Outcome) -> str:
    """The text of all choices."""
    response = outcome.chat if outcome.HasField("chat") else outcome.complete
    return "".join(choice.text for choice in response.choices)


def _compare(path: str, expected: Message, actual: Message) -> Iterator[str]:
    for field, value in expected.ListFields():
        name = f"{path}.{field.json_name}"
        given = getattr(actual, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key in value:
                if key not in given:
                    yield f"{name}[{key}] is missing"
                else:
                    yield from _compare_values(f"{name}[{key}]", value[key], given[key])
        elif field.is_repeated:
            yield from _compare_lists(name, value, given)
        elif field.message_type is not None:
            if not actual.HasField(field.name):
                yield f"{name} is missing"
            else:
                yield from _compare(name, value, given)
        else:
            yield from _compare_values(name, value, given)


def _compare_lists(path: str, expected: Sequence, actual: Sequence) -> Iterator[str]:
    if len(expected) != len(actual):
        yield f"{path}: expected {len(expected)} elements, got {len(actual)}"
        return
    for index, (value, given) in enumerate(zip(expected, actual, strict=True)):
        name = f"{path}[{index}]"
        yield from _compare(name, value, given) if isinstance(value, Message) else _compare_values(name, value, given)


def _compare_values(path: str, expected: object, actual: object) -> Iterator[str]:
    if isinstance(expected, float) and isinstance(actual, float):
        is_equal = math.isclose(expected, actual, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    else:
        is_equal = expected == actual
    if not is_equal:
        yield f"{path}: expected {_short(expected)}, got {_short(actual)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."


def _is_present(value: Any, path: str) -> bool:
    """Whether the field at the path is there: a message or an optional scalar that is set, or a value that is not its default."""
    name, _, rest = path.partition(".")
    if name.isdecimal():
        if int(name) >= len(value):
            return False
        return not rest or _is_present(value[int(name)], rest)
    field = next(field for field in value.DESCRIPTOR.fields if name in (field.json_name, field.name))
    given = getattr(value, field.name)
    if rest:
        return _is_present(given, rest)
    return value.HasField(field.name) if field.has_presence else bool(given)
