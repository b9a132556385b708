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
from triptych_engine.executor.link import TIMEOUT_S, dial
from triptych_engine.executor.nodes import NodeHello
from triptych_engine.executor.worker import DUMP_SIGNAL
from triptych_engine.executor.worker_process import how_ended, start_worker

log = logging.getLogger(__name__)
#: Pause before the next attempt to reach node 0, and one that refuses this node's key, in seconds.
_PAUSE_S, _REFUSED_PAUSE_S = 1.0, 10.0


@dataclass
class Node:
    """Starts and ends workers as node 0 says. When that is gone, its workers end, and the node tries to reach it again.

    Attributes:
        host, port: where node 0 listens.
        secret: see `executor.link`.
    """

    hello: NodeHello
    host: str
    port: int
    secret: bytes
    _workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _channel: Channel | None = None
    _said: str = ""

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises StartupError when node 0 refuses this node."""
        tasks = [asyncio.create_task(asyncio.to_thread(self.run)), asyncio.create_task(stop.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self.stop()
        tasks[1].cancel()
        await tasks[0]

    def run(self) -> None:
        """Serve until `stop`. Raises StartupError when node 0 refuses this node."""
        while not self._is_over.is_set():
            try:
                self._channel = dial(self.host, self.port, self.secret)
            except OSError as error:
                is_refused = isinstance(error, PermissionError)
                self._say(logging.ERROR if is_refused else logging.INFO, f"node 0 at {self.host}:{self.port} is away: {error}")
                self._is_over.wait(_REFUSED_PAUSE_S if is_refused else _PAUSE_S)
                continue
            try:
                if not self._is_over.is_set():  # otherwise `stop` may have come before the channel
                    with contextlib.suppress(OSError, EOFError):
                        self._serve(self._channel)
            finally:
                self._channel.close()
                self._end_all()
            self._is_over.wait(_PAUSE_S)

    def stop(self) -> None:
        """End `run`, and all workers."""
        self._is_over.set()
        if self._channel is not None:
            self._channel.close()

    def _say(self, level: int, message: str) -> None:
        """Log a message that is not the same as the one before."""
        if message != self._said:
            log.log(level, message)
        self._said = message

    def _serve(self, channel: Channel) -> None:
        channel.send(self.hello, TIMEOUT_S)
        why, is_final = channel.receive(TIMEOUT_S)
        if is_final:
            raise StartupError(f"node 0 refuses this node: {why}")
        if why:
            self._say(logging.ERROR, f"node 0 refuses this node now: {why}")
            return
        self._say(logging.INFO, f"node {self.hello.node_rank} of {self.hello.num_nodes} is ready for {self.host}:{self.port}")
        try:
            while True:
                what, token = channel.receive()
                if what == "start":
                    self._start(channel, token)
                elif (worker := self._workers.get(token)) is not None:
                    worker.send_signal(signal.SIGKILL if what == "kill" else DUMP_SIGNAL)
        finally:
            if not self._is_over.is_set():
                self._say(logging.WARNING, "node 0 is gone; its workers here are ended")

    def _start(self, channel: Channel, token: str) -> None:
        try:
            worker = start_worker(self.host, str(self.port), token, secret=self.secret)
        except OSError as error:
            log.error("a worker cannot be started: %s", error)
            channel.send(("ended", token, f"could not be started: {error.strerror}"))
            return
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
