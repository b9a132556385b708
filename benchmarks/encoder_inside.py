"""`triptych serve` with encoder and engine in one process, whose device thread computes towers and language model in turns.

    python benchmarks/encoder_inside.py MODEL --port 8000 --encoder.max-batch-embeddings 2048

For benchmarks/encoder.py alone, as what Triptych is compared with: it is how servers without an encoder service work, with
everything else as in Triptych. The engine's thread computes one batch of the encoder's between two of its steps, on all cores; with
the encoder's default of 256 embeddings that is one picture of a small tower, so text never waits for more than that. Servers that
encode all that fits a step's budget hold it up for longer; --encoder.max-batch-embeddings does the same here.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pydantic_settings import CliApp
from rich.console import Console
from triptych_cli.stack.plan import ServeOptions, Service, plan, spec
from triptych_cli.stack.service_flags import ServiceArgs, has_flag, split_service_args
from triptych_cli.stack.supervisor import ServiceSpec, supervise
from triptych_cli.terminal import TerminalReporter
from triptych_common.host.cores import bear_company, num_usable_cores
from triptych_common.model.store import served_name
from triptych_common.rpc.control import State
from triptych_common.rpc.server import run_service

if TYPE_CHECKING:
    from triptych_encoder.service import EncoderService
    from triptych_encoder.settings import EncoderSettings
    from triptych_engine.settings import EngineSettings

_AS_ONE_PROCESS = "--as-one-process"
_POLL_S = 0.05

#: Runs something on the engine's thread, between two steps.
Call = Callable[[Callable[[], None]], Future[None]]


def _encode_on_engine_thread(encoder: EncoderService, call: Call) -> None:
    """Replace the encoder's device thread by turns on the engine's."""
    from triptych_encoder.tower.device_loop import DeviceLoop, _Job

    class TurnsOnEngineThread(DeviceLoop):
        """One batch, or one call, per turn; the next turn is asked for when the last is over, so that a step can come between."""

        def __init__(self, budget: int) -> None:
            super().__init__(budget)
            self._events = asyncio.get_running_loop()
            self._has_turn = False

        def start(self) -> None:
            pass

        def stop(self) -> None:
            with self._changed:
                self._stopping = True
            for job in self._jobs:
                if isinstance(job, _Job):
                    job.future.cancel()

        def _enqueue(self, job: Any) -> None:
            with self._changed:
                self._jobs.append(job)
                if self._has_turn:
                    return
                self._has_turn = True
            call(self._take_turn)

        def _take_turn(self) -> None:
            with self._changed:
                if self._stopping or not self._jobs:
                    self._has_turn = False
                    return
                first = self._jobs.popleft()
                batch = self._gather(first) if isinstance(first, _Job) else []
            if isinstance(first, _Job):
                self._encode([job for job in batch if job.future.set_running_or_notify_cancel()])
            else:
                first()
            # By way of the event loop: the engine's thread takes all commands that it finds before it begins a step.
            with contextlib.suppress(RuntimeError):
                self._events.call_soon_threadsafe(call, self._take_turn)

    encoder._device_loop = TurnsOnEngineThread(encoder._device_loop._budget)


def run_both(engine_settings: EngineSettings, encoder_settings: EncoderSettings) -> None:
    """Both services in this process, until SIGINT or SIGTERM."""
    bear_company()
    from triptych_encoder.service import EncoderService
    from triptych_engine.service import EngineService

    async def serve(stop: asyncio.Event) -> None:
        engine, stop_engine = EngineService(engine_settings), asyncio.Event()
        running = asyncio.create_task(engine.run(stop_engine))
        running.add_done_callback(lambda _: stop.set())
        try:
            while engine.state != State.SERVER_STATE_SERVING and not stop.is_set():  # noqa: ASYNC110 - the service has no event for it
                await asyncio.sleep(_POLL_S)
            if not stop.is_set():
                encoder = EncoderService(encoder_settings)
                _encode_on_engine_thread(encoder, engine._loaded().call)
                await encoder.run(stop)
        finally:
            stop_engine.set()
            await running

    run_service("engine", engine_settings, serve)


def services_of(options: ServeOptions, given: ServiceArgs) -> dict[str, Service]:
    """The services as `triptych serve` would start them, but engine and encoder each with all cores: they take turns."""
    num_cores = str(num_usable_cores())
    for name, flag in (("engine", "--num-threads-while-encoding"), ("encoder", "--num-threads")):
        if not has_flag(given[name], flag):
            given[name] += [flag, num_cores]
    return {service.name: service for service in plan(options, given, with_encoder=True)}


def _together(engine: Service, encoder: Service) -> ServiceSpec:
    """How to run the two as one process; the encoder's part of it is ready last."""
    args = json.dumps({"engine": engine.args, "encoder": encoder.args})
    argv = [sys.executable, __file__, _AS_ONE_PROCESS, args]
    return ServiceSpec("engine", argv, {**os.environ, "PYTHONUNBUFFERED": "1"}, spec(encoder).is_ready)


def main() -> None:
    """Start the one process, a frontend and a gateway, and say where they listen."""
    rest, given = split_service_args(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for name in ("port", "frontend-port", "encoder-port", "engine-port", "max-model-len"):
        parser.add_argument(f"--{name}", type=int)
    options = ServeOptions(**vars(parser.parse_args(rest)))
    services = services_of(options, given)
    specs = [_together(services["engine"], services["encoder"]), spec(services["frontend"]), spec(services["gateway"])]

    def announce(elapsed_s: float) -> None:
        address = services["gateway"].address
        print(f"Triptych serves {served_name(options.model)} at http://{address} (ready after {elapsed_s:.1f} s)", flush=True)

    names = [each.name for each in specs]
    with TerminalReporter(Console(stderr=True, highlight=False), names, True, announce) as reporter:
        supervise(specs, reporter)


if __name__ == "__main__":
    if sys.argv[1:2] == [_AS_ONE_PROCESS]:
        from triptych_encoder.settings import EncoderSettings
        from triptych_engine.settings import EngineSettings

        both = json.loads(sys.argv[2])
        run_both(CliApp.run(EngineSettings, cli_args=both["engine"]), CliApp.run(EncoderSettings, cli_args=both["encoder"]))
    else:
        main()
