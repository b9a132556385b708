"""A host whose processes compute a part of a model, for an engine that serves at another host."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import threading
from dataclasses import dataclass, field

from triptych.errors import StartupError

from triptych_engine.executor.channel import Channel
from triptych_engine.executor.link import TIMEOUT_S, NodeKey, dial
from triptych_engine.executor.nodes import NodeHello
from triptych_engine.executor.worker import DUMP_SIGNAL
from triptych_engine.executor.worker_process import how_ended, start_worker

log = logging.getLogger(__name__)
#: Pause before the next attempt to reach node 0, in seconds.
_PAUSE_S = 1.0


@dataclass
class Node:
    """Starts and ends workers as node 0 says. When that is gone, its workers end, and the node tries to reach it again.

    Attributes:
        host, port: where node 0 listens.
    """

    hello: NodeHello
    host: str
    port: int
    key: NodeKey
    _workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _channel: Channel | None = None

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises StartupError when node 0 refuses this node."""
        tasks = [asyncio.create_task(asyncio.to_thread(self.run)), asyncio.create_task(stop.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self.stop()
        tasks[1].cancel()
        await tasks[0]

    def run(self) -> None:
        """Serve until `stop`. Raises StartupError when node 0 refuses this node."""
        why = ""
        while not self._is_over.is_set():
            try:
                self._channel = dial(self.host, self.port, self.key)
            except OSError as error:
                if why != (why := str(error)):
                    log.info("node 0 at %s:%d is away: %s", self.host, self.port, why)
                self._is_over.wait(_PAUSE_S)
                continue
            why = ""
            try:
                if not self._is_over.is_set():  # otherwise `stop` may have come before the channel
                    with contextlib.suppress(OSError, EOFError):
                        self._serve(self._channel)
            finally:
                self._channel.close()
                self._end_all()
            if not self._is_over.wait(_PAUSE_S):
                log.warning("node 0 is gone; its workers here were ended")

    def stop(self) -> None:
        """End `run`, and all workers."""
        self._is_over.set()
        if self._channel is not None:
            self._channel.close()

    def _serve(self, channel: Channel) -> None:
        channel.send(self.hello, TIMEOUT_S)
        if why := channel.receive(TIMEOUT_S):
            raise StartupError(f"node 0 refuses this node: {why}")
        log.info("node %d of %d is ready for %s:%d", self.hello.node_rank, self.hello.num_nodes, self.host, self.port)
        while True:
            what, token = channel.receive()
            if what == "start":
                self._start(channel, token)
            elif (worker := self._workers.get(token)) is not None:
                worker.send_signal(signal.SIGKILL if what == "kill" else DUMP_SIGNAL)

    def _start(self, channel: Channel, token: str) -> None:
        worker = start_worker(self.host, str(self.port), token, str(self.key.file))
        self._workers[token] = worker
        channel.send(("started", token, worker.pid))
        threading.Thread(target=self._until_ended, args=(channel, token, worker), name="worker", daemon=True).start()

    def _until_ended(self, channel: Channel, token: str, worker: subprocess.Popen[bytes]) -> None:
        status = worker.wait()
        self._workers.pop(token, None)
        with contextlib.suppress(OSError):  # node 0 is gone
            channel.send(("ended", token, how_ended(status)))

    def _end_all(self) -> None:
        for worker in list(self._workers.values()):
            worker.kill()
            worker.wait()
