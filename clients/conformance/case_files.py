"""Reads the cases and fills in what only the runner knows."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from pathlib import Path

from google.protobuf import json_format

from conformance.pb import conformance_pb2

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
_FILE = "$FILE:"


def load_cases(is_real: bool) -> list[conformance_pb2.Case]:
    """All cases for the mock, or for a real stack, in the order of the files. Raises ValueError for a file that is no suite."""
    cases: list[conformance_pb2.Case] = []
    for file in sorted(HERE.glob("cases/*.json")):
        text = file.read_text(encoding="utf-8")
        try:
            suite = json_format.Parse(_with_data(text), conformance_pb2.Suite())
        except json_format.ParseError as error:
            raise ValueError(f"{file}: {error}") from error
        for case in suite.cases:
            _check(case)
        cases += [case for case in suite.cases if case.real_stack == is_real]
    names = [case.name for case in cases]
    if len(set(names)) != len(names):
        raise ValueError(f"two cases have the same name: {sorted(name for name in names if names.count(name) > 1)[0]}")
    return cases


def _check(case: conformance_pb2.Case) -> None:
    """Raise ValueError for a case that expects the mock to tell what it was not asked for: it would pass with any client."""
    expected = case.expected
    wants_seen = expected.seen or expected.min_longest_send_s or any(path.startswith("seen.") for path in expected.present)
    if wants_seen and not (case.call.request_id and not case.call.address):
        raise ValueError(f"{case.name}: what the server saw is known of calls with a request_id, to the default server")


def _with_data(text: str) -> str:
    """The suite with `$RANDOM_5MB` and `$FILE:path` replaced by base64."""
    large = base64.b64encode(random.Random(5).randbytes(5_000_000)).decode()
    pieces = text.replace('"$RANDOM_5MB"', f'"{large}"').split(f'"{_FILE}')
    for index, piece in enumerate(pieces[1:], 1):
        path, rest = piece.split('"', 1)
        pieces[index] = f'"{base64.b64encode((ROOT / path).read_bytes()).decode()}"{rest}'
    return "".join(pieces)


def call_line(case: conformance_pb2.Case, places: Mapping[str, str], api_key: str = "") -> str:
    """The line that the client under test reads.

    Args:
        places: `$NAME` -> address of a server, or path of a file. The empty name is the default server.
        api_key: of the default server.
    """
    call = conformance_pb2.Call()
    call.CopyFrom(case.call)
    if not call.address:
        call.api_key = call.api_key or api_key
    call.name, call.address = case.name, places[call.address]
    if call.HasField("tls"):
        for field, value in call.tls.ListFields():
            setattr(call.tls, field.name, places.get(value, value))
    return json_format.MessageToJson(call, indent=None)
