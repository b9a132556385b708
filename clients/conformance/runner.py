"""Runs the cases with one client under test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from google.protobuf import json_format
from triptych.mock.v1 import mock_pb2, mock_pb2_grpc

from conformance.case_files import HERE, ROOT, call_line
from conformance.compare import differences
from conformance.pb import conformance_pb2
from conformance.servers import MOCK

#: Longest time for one case, in seconds.
_CASE_TIMEOUT_S = 60.0
#: Longest wait for the mock to notice that a call has ended.
_SETTLE_S = 3.0
#: A line holds media in base64, in both directions.
_MAX_LINE_BYTES = 128 << 20


@dataclass(frozen=True)
class Verdict:
    """How one case ended: what is wrong, empty if it passed."""

    case: str
    differences: list[str]


@dataclass(frozen=True)
class ClientUnderTest:
    """One line of clients.json.

    Args:
        name: e.g. typescript.
        argv: the program that makes the calls; run in the repository's root.
        target: of make, which builds it.
        tools: programs that the build needs. Without them the client is left out, unless it is asked for by name.
    """

    name: str
    argv: list[str]
    target: str = ""
    tools: tuple[str, ...] = ()

    def missing_tools(self) -> list[str]:
        """The tools that this machine does not have."""
        return [tool for tool in self.tools if shutil.which(tool) is None]


def load_clients() -> dict[str, ClientUnderTest]:
    """The clients of clients.json, by name."""
    table = json.loads((HERE / "clients.json").read_text(encoding="utf-8"))
    return {name: ClientUnderTest(name, **row | {"tools": tuple(row.get("tools", ()))}) for name, row in table.items()}


class ClientDiedError(Exception):
    """The client under test ended, or did not answer in time."""


async def run_cases(
    client: ClientUnderTest, cases: Sequence[conformance_pb2.Case], places: Mapping[str, str], *, has_mock: bool, api_key: str = ""
) -> list[Verdict]:
    """Run the cases one after another. A client that dies or hangs is started again for the next case.

    Args:
        places: `$NAME` -> address or path; see `call_line`.
        has_mock: the default server is a mock, which tells what it saw, or a gateway in front of one.
        api_key: that the default server asks for.
    """
    verdicts: list[Verdict] = []
    queue = list(cases)
    async with grpc.aio.insecure_channel(places.get(MOCK, places[""])) as channel:
        mock = mock_pb2_grpc.MockServiceStub(channel) if has_mock else None
        while queue:
            async with _program(client) as process:
                while queue:
                    case = queue.pop(0)
                    try:
                        verdicts.append(Verdict(case.name, await _run(process, case, places, mock, api_key)))
                    except ClientDiedError as error:
                        verdicts.append(Verdict(case.name, [str(error)]))
                        break
    return verdicts


@asynccontextmanager
async def _program(client: ClientUnderTest) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "GRPC_VERBOSITY": "NONE"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *client.argv, stdin=pipe, stdout=pipe, cwd=ROOT, env=environment, limit=_MAX_LINE_BYTES
    )
    try:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _run(
    process: asyncio.subprocess.Process,
    case: conformance_pb2.Case,
    places: Mapping[str, str],
    mock: mock_pb2_grpc.MockServiceStub | None,
    api_key: str,
) -> list[str]:
    assert process.stdin is not None
    assert process.stdout is not None
    start_s = time.monotonic()
    try:
        async with asyncio.timeout(_CASE_TIMEOUT_S):
            process.stdin.write(call_line(case, places, api_key).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
    except TimeoutError as error:
        raise ClientDiedError(f"no outcome within {_CASE_TIMEOUT_S:g} s") from error
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ClientDiedError("the client ended before it read the call") from error
    elapsed_s = time.monotonic() - start_s
    if not line:
        raise ClientDiedError(f"the client ended without an outcome (exit status {await process.wait()})")
    try:
        outcome = json_format.Parse(line, conformance_pb2.Outcome())
    except json_format.ParseError as error:
        raise ClientDiedError(f"the outcome is no JSON of an Outcome: {error}") from error
    if outcome.name != case.name:
        raise ClientDiedError(f"the outcome is of {outcome.name!r}")
    seen = await _seen(mock, case) if mock and case.call.request_id else None
    return differences(case.expected, outcome, seen, elapsed_s, is_direct=not api_key)


async def _seen(mock: mock_pb2_grpc.MockServiceStub, case: conformance_pb2.Case) -> Sequence[mock_pb2.SeenCall]:
    """The calls with the case's request id, once the mock knows their ends."""
    deadline_s = time.monotonic() + _SETTLE_S
    while True:
        calls = (await mock.GetCalls(mock_pb2.GetCallsRequest(request_id=case.call.request_id))).calls
        running = mock_pb2.SeenCall.STATE_RUNNING
        if time.monotonic() > deadline_s or (calls and all(call.state != running for call in calls)):
            return calls
        await asyncio.sleep(0.02)
