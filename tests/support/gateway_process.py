"""A gateway as a process of its own, for attacks: what it does to other clients is measured over sockets."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: No frontend is there. A request that is not refused for its body gets 503.
_NO_FRONTEND = ("--frontend-addresses", "127.0.0.1:1", "--no-access-log")


class GatewayProcess:
    """A gateway that listens on the loopback."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def cpu_s(self) -> float:
        """CPU time that the process has used, in seconds."""
        used_ns = 0
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                used_ns += int((thread / "schedstat").read_text().split()[0])
            except OSError:  # the thread has ended
                continue
        return used_ns / 1e9

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and content of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest("POST", path)
            connection.putheader("content-type", "application/json")
            connection.putheader("content-length", str(len(body)))
            connection.endheaders()
            with suppress(BrokenPipeError, ConnectionResetError):  # it was refused before it was read
                connection.send(body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    @contextmanager
    def polled(self) -> Iterator[list[float]]:
        """Ask for /live all the time, as another client, while the block runs. Yields how long each poll took, in seconds.

        A poll takes no longer than the gateway worked meanwhile, all its threads together: on a machine where other programs run,
        the rest is time in which it did not run at all.
        """
        times: list[float] = []
        stop = threading.Event()

        def poll() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            while not stop.is_set():
                start_s, start_cpu_s = time.perf_counter(), self.cpu_s()
                connection.request("GET", "/live")
                connection.getresponse().read()
                times.append(min(time.perf_counter() - start_s, self.cpu_s() - start_cpu_s))
                stop.wait(0.005)
            connection.close()

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            yield times
        finally:
            stop.set()
            thread.join()


@contextmanager
def gateway_process(*flags: str) -> Iterator[GatewayProcess]:
    """`python -m triptych_gateway` on a free port, killed at the end."""
    command = [sys.executable, "-m", "triptych_gateway", "--port", "0", "--grpc-port", "0", *_NO_FRONTEND, *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "listening on" in line)
            # What it logs later must not fill the pipe.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield GatewayProcess(process, int(line.split("http://", 1)[1].split(",")[0].rsplit(":", 1)[1]))
        finally:
            process.kill()
