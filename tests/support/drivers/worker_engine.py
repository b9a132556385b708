"""The step loop with worker processes, without gRPC."""

from __future__ import annotations

import queue
import time
from collections import defaultdict

import psutil
from triptych_engine.core import EngineCore
from triptych_engine.executor.multiproc import MultiprocExecutor
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import Request

from support.builders.engine import a_request, a_scheduler
from support.fakes.runner import expected_output

WAIT_S = 60.0


class Engine:
    """A core with a worker process."""

    def __init__(self, executor: MultiprocExecutor, *, async_scheduling: bool = True) -> None:
        self.executor = executor
        self.loaded = executor.load()
        self.scheduler = a_scheduler(self.loaded.num_blocks, self.loaded.block_size)
        self._ended: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.tokens = defaultdict[str, list[int]](list)
        self.last: dict[str, SequenceOutput] = {}
        self.core = EngineCore(self.scheduler, executor, self._publish, async_scheduling=async_scheduling)
        self.core.start()

    def _publish(self, step: int, outputs: list[SequenceOutput], load: object) -> None:
        for output in outputs:
            self.tokens[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                self.last[output.request_id] = output
                self._ended.put(output.request_id)

    def finish(self, *requests: Request) -> None:
        """Add requests, and wait until all have ended."""
        for request in requests:
            self.core.add(request)
        for _ in requests:
            self._ended.get(timeout=WAIT_S)

    def stop(self) -> None:
        self.core.stop()
        self.executor.close()


def suspend(pid: int) -> psutil.Process:
    """Stop a worker process as SIGSTOP does, and wait until all its threads stand: on another core, one may run on for a moment."""
    process = psutil.Process(pid)
    process.suspend()
    deadline = time.monotonic() + WAIT_S
    while any(psutil.Process(thread.id).status() != psutil.STATUS_STOPPED for thread in process.threads()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} has not stopped")
        time.sleep(0.001)
    return process


def some_requests(num: int = 6) -> list[Request]:
    return [a_request(f"r{index}", [1, 2, 3, 4, index], max_tokens=10) for index in range(num)]


def assert_expected(engine: Engine, requests: list[Request]) -> None:
    for request in requests:
        assert engine.tokens[request.request_id] == expected_output(request.prompt_token_ids, request.sampling)
