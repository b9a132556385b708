"""Gateway and frontend with an engine behind them that has no model: it brings tokens faster than one with a model could.

    python -m benchmarks.engine.fake PORT MODEL        # the fake alone

It brings one token to each of its sequences at a time, all in one message, as the real one does.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager

import grpc
import psutil
import uvloop
from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from triptych_cli.load.requests import Target
from triptych_cli.stack.ports import free_port
from triptych_common.model.store import model_info, resolve_model
from triptych_common.rpc.channels import SERVER_OPTIONS

from benchmarks.errors import BenchmarkError
from benchmarks.harness.child import Child
from benchmarks.harness.stack import HOST, Stack, ask, checkout_env

FAKE_ENGINE = "fake engine"
#: Of all streams together.
TOKENS_PER_S = 12_000.0
#: Less than this between two tokens of a stream asks more of the machine than any engine does.
MIN_INTERVAL_S = 0.005
READY_TIMEOUT_S = 60.0
_IDLE_S = 0.002
#: Ids of ordinary words in any byte-level vocabulary of some size.
_FIRST_TOKEN_ID, _NUM_TOKEN_IDS = 300, 2000


def interval_s(streams: int) -> float:
    """Seconds between two tokens of each stream that make TOKENS_PER_S in all, as far as that is sensible."""
    return max(streams / TOKENS_PER_S, MIN_INTERVAL_S) if streams else _IDLE_S


class FakeEngine(engine_pb2_grpc.EngineServiceServicer):
    """Says one token to each sequence per interval; what took too long is not made up for."""

    def __init__(self, model: common_pb2.ModelInfo) -> None:
        self._model = model

    async def Session(  # noqa: N802
        self, requests: AsyncIterator[engine_pb2.SessionRequest], context: object
    ) -> AsyncIterator[engine_pb2.SessionResponse]:
        left: dict[str, int] = {}

        async def read() -> None:
            async for message in requests:
                left.update({request.request_id: request.sampling.max_tokens for request in message.add})

        reader = asyncio.create_task(read())
        yield engine_pb2.SessionResponse(model=self._model)
        step, next_s = 0, time.monotonic()
        while not reader.done():
            next_s = max(next_s + interval_s(len(left)), time.monotonic())
            await asyncio.sleep(next_s - time.monotonic())
            if left:
                step += 1
                yield self._next_tokens(step, left)

    @staticmethod
    def _next_tokens(step: int, left: dict[str, int]) -> engine_pb2.SessionResponse:
        """A token for each sequence; `left` loses those that end with it."""
        token_id = _FIRST_TOKEN_ID + step % _NUM_TOKEN_IDS
        response = engine_pb2.SessionResponse(step=step)
        for request_id in list(left):
            output = response.outputs.add(request_id=request_id, token_ids=[token_id])
            left[request_id] -= 1
            if not left[request_id]:
                output.finish_reason = common_pb2.FINISH_REASON_LENGTH
                del left[request_id]
        return response


@contextmanager
def running_without_model(model: str) -> Iterator[Stack]:
    """A fake engine, a frontend with the model's tokenizer, and a gateway, for the time of the block."""
    engine, frontend, gateway = (free_port(HOST) for _ in range(3))
    quiet = ("--log-level", "WARNING")
    front = ("--port", str(frontend), "--control-port", "0", "--engine-addresses", f"{HOST}:{engine}", "--model", model, *quiet)
    programs = {
        "engine": (__name__, str(engine), model),
        "frontend": ("triptych_frontend", *front),
        "gateway": (
            "triptych_gateway",
            "--port",
            str(gateway),
            "--grpc-port",
            "0",
            "--frontend-addresses",
            f"{HOST}:{frontend}",
            *quiet,
        ),
    }
    with ExitStack() as exits:
        children = {
            name: exits.enter_context(Child([sys.executable, "-m", *argv], checkout_env())) for name, argv in programs.items()
        }
        target = Target(FAKE_ENGINE, f"http://{HOST}:{gateway}", model)
        _wait_until_ready(target)
        yield Stack(target, "", {name: psutil.Process(child.pid) for name, child in children.items()})


def _wait_until_ready(target: Target) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            return ask(target)
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise BenchmarkError(f"gateway and frontend do not answer: {error}") from error
            time.sleep(0.2)


async def serve(port: int, model: str) -> None:
    """Serve as the engine until killed."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    engine_pb2_grpc.add_EngineServiceServicer_to_server(FakeEngine(model_info(resolve_model(model), model)), server)
    server.add_insecure_port(f"{HOST}:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2]))
