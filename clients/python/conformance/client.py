"""Client under test of the conformance cases: one `Call` per line on standard input, one `Outcome` per line on standard output.

python clients/python/conformance/client.py            # with triptych.Client
python clients/python/conformance/client.py --async    # with triptych.AsyncClient
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from conformance.pb.conformance_pb2 import Call, Outcome
from google.protobuf import json_format
from triptych import AsyncClient, Client, TLSConfig, TriptychError
from triptych.v1.generation_pb2 import MediaReport

#: A call that is to be cancelled before its first response is cancelled after this many seconds.
_CANCEL_AFTER_S = 0.3


def settings(call: Call) -> dict[str, Any]:
    """Arguments of the client."""
    tls = None
    if call.HasField("tls"):
        tls = TLSConfig(**{field.name: value for field, value in call.tls.ListFields()})
    return {"api_key": call.api_key or None, "tls": tls}


def call_options(call: Call) -> dict[str, Any]:
    """Arguments of the method."""
    options: dict[str, Any] = {"timeout_s": call.timeout_s if call.HasField("timeout_s") else math.inf}
    return options | ({"request_id": call.request_id} if call.request_id else {})


def keep_media(outcome: Outcome, trailers: Sequence[tuple[str, str | bytes]]) -> None:
    outcome.trailing_media.extend(MediaReport.FromString(value) for key, value in trailers if key == "triptych-media-bin")


def method_of(client: Any, call: Call) -> tuple[str, Any, tuple[Any, ...]]:
    """The kind of the request, the client's method of that name, and its positional arguments."""
    kind = call.WhichOneof("request") or ""
    return kind, getattr(client, kind), () if kind == "list_models" else (getattr(call, kind),)


def add_error(outcome: Outcome, error: TriptychError) -> None:
    outcome.error_class, outcome.error_request_id = type(error).__name__, error.request_id
    told = outcome.error
    told.code, told.message, told.reason = error.code, error.message, error.reason
    told.field, told.limit, told.value = error.field, error.limit, error.value
    if error.retry_after_s is not None:
        told.retry_after_s = error.retry_after_s


def add_response(outcome: Outcome, name: str, response: Any) -> None:
    field = getattr(outcome, name)
    field.append(response) if name.endswith("_stream") else field.CopyFrom(response)


def run(call: Call) -> Outcome:
    """Make one call with `Client`."""
    outcome, is_cancelled = Outcome(name=call.name), threading.Event()
    limit = call.cancel_after_responses if call.HasField("cancel_after_responses") else None
    with Client(call.address, **settings(call)) as client:
        kind, method, arguments = method_of(client, call)

        def cancel() -> None:
            is_cancelled.set()
            stream.close() if kind.endswith("_stream") else client.close()

        timer = threading.Timer(_CANCEL_AFTER_S, cancel)
        stream = None
        try:
            if kind.endswith("_stream"):
                stream = method(*arguments, **call_options(call))
            if limit == 0:
                timer.start()
            if stream is None:
                add_response(outcome, kind, method(*arguments, **call_options(call), on_trailers=partial(keep_media, outcome)))
            else:
                for number, response in enumerate(stream, 1):
                    add_response(outcome, kind, response)
                    if number == limit:
                        stream.close()
                    if number == 1:
                        time.sleep(call.pause_s)
        except TriptychError as error:
            if not is_cancelled.is_set():
                add_error(outcome, error)
        finally:
            timer.cancel()
        if stream is not None:
            add_response(outcome, kind.removesuffix("_stream"), stream.response)
            outcome.trailing_media.extend(stream.trailing_media())
            stream.close()
    return outcome


async def run_async(call: Call) -> Outcome:
    """Make one call with `AsyncClient`."""
    outcome = Outcome(name=call.name)
    limit = call.cancel_after_responses if call.HasField("cancel_after_responses") else None
    async with AsyncClient(call.address, **settings(call)) as client:
        kind, method, arguments = method_of(client, call)
        stream = method(*arguments, **call_options(call)) if kind.endswith("_stream") else None
        try:
            async with asyncio.timeout(_CANCEL_AFTER_S if limit == 0 else None):
                if stream is None:
                    trailers = partial(keep_media, outcome)
                    add_response(outcome, kind, await method(*arguments, **call_options(call), on_trailers=trailers))
                else:
                    number = 0
                    async for response in stream:
                        number += 1
                        add_response(outcome, kind, response)
                        if number == limit:
                            stream.close()
                        if number == 1:
                            await asyncio.sleep(call.pause_s)
        except TimeoutError:
            pass
        except TriptychError as error:
            add_error(outcome, error)
        if stream is not None:
            add_response(outcome, kind.removesuffix("_stream"), stream.response)
            outcome.trailing_media.extend(await stream.trailing_media())
            stream.close()
    return outcome


def main() -> None:
    """Answer each line of the input."""
    is_async = sys.argv[1:] == ["--async"]
    for line in sys.stdin:
        call = json_format.Parse(line, Call())
        outcome = asyncio.run(run_async(call)) if is_async else run(call)
        print(json_format.MessageToJson(outcome, indent=None, preserving_proto_field_name=True), flush=True)


if __name__ == "__main__":
    main()
