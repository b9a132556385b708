"""The comparison of the conformance runner: what it must find, and what it must let pass."""

import json
from pathlib import Path

import pytest
from conformance import case_files
from conformance.case_files import call_line, load_cases
from conformance.compare import differences
from conformance.pb import conformance_pb2
from google.protobuf import json_format
from triptych.mock.v1 import mock_pb2

CHAT = {"choices": [{"text": "Hello", "finishReason": "FINISH_REASON_STOP", "logprobs": [{"logprob": -0.5}]}], "model": "m"}
ERROR = {"code": 8, "reason": "QUEUE_FULL"}


def compare(expected: dict, outcome: dict, seen: list[dict] | None = None, elapsed_s: float = 0.0) -> list[str]:
    return differences(
        json_format.ParseDict(expected, conformance_pb2.Expected()),
        json_format.ParseDict(outcome, conformance_pb2.Outcome()),
        None if seen is None else [json_format.ParseDict(call, mock_pb2.SeenCall()) for call in seen],
        elapsed_s,
    )


PASSES = [
    ({}, {"chat": CHAT}),
    ({"outcome": {"chat": CHAT}}, {"chat": CHAT}),
    ({"outcome": {"chat": {"choices": [{"text": "Hello"}]}}}, {"chat": CHAT}),
    ({"outcome": {"chat": {"choices": [{"logprobs": [{"logprob": -0.50000001}]}]}}}, {"chat": CHAT}),
    ({"outcome": {"error": ERROR}}, {"error": ERROR | {"message": "full"}}),
    ({"text": "Hello"}, {"chat": CHAT}),
    ({"present": ["chat.choices.0.text", "chat.choices.0.logprobs"]}, {"chat": CHAT}),
]


@pytest.mark.parametrize(("expected", "outcome"), PASSES)
def test_passes(expected: dict, outcome: dict):
    assert compare(expected, outcome) == []


HALLO = {"chat": {"choices": [{"text": "Hallo"}]}}
FAILS = [
    ({"outcome": HALLO}, {"chat": CHAT}, "outcome.chat.choices[0].text: expected 'Hallo', got 'Hello'"),
    ({"outcome": {"chat": {"choices": [{}, {}]}}}, {"chat": CHAT}, "outcome.chat.choices: expected 2 elements, got 1"),
    ({"outcome": {"chat": {}}}, {"error": ERROR}, "outcome.chat is missing"),
    ({"outcome": {"chat": {"usage": {"promptTokens": 1}}}}, {"chat": CHAT}, "outcome.chat.usage is missing"),
    ({}, {"error": ERROR, "errorClass": "QueueFullError"}, "the call failed: QueueFullError code=8 reason='QUEUE_FULL' ''"),
    ({"outcome": {"error": ERROR}}, {"chat": CHAT}, "outcome.error is missing"),
    ({"outcome": {"errorClass": "A"}}, {"errorClass": "B"}, "outcome.errorClass: expected 'A', got 'B'"),
    ({"text": "Hell"}, {"chat": CHAT}, "text: expected 'Hell', got 'Hello'"),
    ({"present": ["chat.usage"]}, {"chat": CHAT}, "chat.usage is missing"),
    ({"present": ["chat.choices.1.text"]}, {"chat": CHAT}, "chat.choices.1.text is missing"),
]


@pytest.mark.parametrize(("expected", "outcome", "line"), FAILS)
def test_fails(expected: dict, outcome: dict, line: str):
    assert line in compare(expected, outcome)


def test_what_the_server_saw():
    one = {"state": "STATE_CANCELLED", "numResponses": 2, "longestSendS": 0.8}
    assert compare({"seen": [{"state": "STATE_CANCELLED"}], "minLongestSendS": 0.5}, {}, [one]) == []
    assert compare({"seen": [{"state": "STATE_ENDED"}]}, {}, [one]) == ["seen[0].state: expected 2, got 3"]
    assert compare({"seen": [{}, {}]}, {}, [one]) == ["seen: expected 2 elements, got 1"]
    assert compare({"seen": [{}], "minLongestSendS": 0.9}, {}, [one]) == [
        "the server did not wait for the reader: its longest send took 0.80 s, not 0.9 s"
    ]
    assert compare({"seen": [{}], "present": ["seen.0.timeoutS"]}, {}, [one]) == ["seen.0.timeoutS is missing"]
    # A real stack tells nothing of its calls.
    assert compare({"seen": [{}, {}], "present": ["seen.0.timeoutS"]}, {}, None) == []


def test_a_reason_that_nobody_sent_fails():
    expected = {"outcome": {"error": {"code": 13}}}
    assert compare(expected, {"error": {"code": 13, "reason": "INTERNAL"}}) == [
        "outcome.error.reason: expected none, got 'INTERNAL'"
    ]
    assert compare(expected, {"error": {"code": 13}}) == []


def test_maps_are_compared_by_their_values():
    one = {"metadata": {"x-a": "1", "x-b": "2"}}
    assert compare({"seen": [{"metadata": {"x-b": "2"}}]}, {}, [one]) == []
    assert compare({"seen": [{"metadata": {"x-a": "2"}}]}, {}, [one]) == ["seen[0].metadata[x-a]: expected '2', got '1'"]
    assert compare({"seen": [{"metadata": {"x-c": "2"}}]}, {}, [one]) == ["seen[0].metadata[x-c] is missing"]


@pytest.mark.parametrize("expected", [{"seen": [{}]}, {"minLongestSendS": 1}, {"present": ["seen.0.timeoutS"]}])
@pytest.mark.parametrize("call", [{}, {"requestId": "a", "address": "$TLS"}])
def test_a_case_that_any_client_would_pass_is_refused(expected: dict, call: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "cases").mkdir()
    case = {"name": "a", "call": call, "expected": expected}
    (tmp_path / "cases" / "a.json").write_text(json.dumps({"cases": [case]}))
    monkeypatch.setattr(case_files, "HERE", tmp_path)
    with pytest.raises(ValueError, match="a: what the server saw"):
        load_cases(False)


def test_a_slow_call_fails():
    assert compare({"maxS": 1}, {}, elapsed_s=2.0) == ["it took 2.0 s, more than 1 s"]


@pytest.mark.parametrize("is_real", [False, True])
def test_all_cases_can_be_read(is_real: bool):
    places = {"": "here:1"} | {f"${name}": f"{name}:1" for name in ("TLS", "MTLS", "KEY", "TLS_KEY", "CLOSED", "CA", "OTHER_CA")}
    cases = load_cases(is_real)
    assert len(cases) >= (15 if is_real else 80)
    for case in cases:
        assert case.description
        call = json_format.Parse(call_line(case, places), conformance_pb2.Call())
        assert call.name == case.name
        assert call.WhichOneof("request")
        assert "$" not in call.address
