"""Services that may open few files, and a flood of connections: they do not spin meanwhile, and answer again afterwards."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from support.certificates import issue, write
from support.drivers.https_gateway import trusting

_METERED = Path(__file__).parents[2] / "support" / "processes" / "metered_service.py"
_LIMIT = 64
_FLOOD = 150
#: Time over which the processor time of a starved service is taken, in seconds.
_WATCH_S = 2.0
#: What a spinning process uses of it even if ten others want the core.
_MAX_CPU_S = 0.1
_GATEWAY = "from triptych_gateway.main import main; main()"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _limited(command: list[str], url: str) -> Iterator[psutil.Process]:
    """A service that may open few files, once it answers."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_LIMIT, _LIMIT))

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=limit) as process:
        try:
            _until_answered(url, 60)
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def _until_answered(url: str, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(httpx.TransportError):
            assert httpx.get(url, timeout=5, trust_env=False, verify=trusting()).status_code == 200
            return
        assert time.monotonic() < deadline_s, f"{url} does not answer"
        time.sleep(0.05)


def _gateway(port: int, directory: Path) -> tuple[list[str], str]:
    command = [sys.executable, "-c", _GATEWAY, "--port", str(port), "--grpc-port", "0", "--frontend-addresses", "127.0.0.1:1"]
    return command, f"http://127.0.0.1:{port}/live"


def _https_gateway(port: int, directory: Path) -> tuple[list[str], str]:
    command, _ = _gateway(port, directory)
    return [*command, "--https-dir", str(write(directory, issue("127.0.0.1")))], f"https://127.0.0.1:{port}/live"


def _metrics(port: int, directory: Path) -> tuple[list[str], str]:
    return [sys.executable, str(_METERED), str(port)], f"http://127.0.0.1:{port}/metrics"


@pytest.mark.parametrize("service", [_gateway, _https_gateway, _metrics])
def test_a_flood_of_connections_neither_spins_nor_outlasts_itself(
    service: Callable[[int, Path], tuple[list[str], str]], tmp_path: Path
) -> None:
    port = _free_port()
    command, url = service(port, tmp_path / "https")
    with _limited(command, url) as process, contextlib.ExitStack() as flood:
        for _ in range(_FLOOD):
            connection = flood.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", port))
            connection.settimeout(20)
            time.sleep(0.002)  # what exceeds the system's queue of new connections would be tried again after a second
        if service is _gateway:
            assert connection.recv(100, socket.MSG_WAITALL).startswith(b"HTTP/1.1 503"), "it keeps files for itself"
        if service is _https_gateway:
            assert connection.recv(100) == b"", "closed before the handshake"
        if service is not _metrics:
            assert process.num_fds() < _LIMIT - 8
        before = process.cpu_times()
        time.sleep(_WATCH_S)
        after = process.cpu_times()
        used_s = after.user + after.system - before.user - before.system
        assert used_s < _MAX_CPU_S, f"{used_s:.2f} s of processor time in {_WATCH_S} s of waiting"
        flood.close()
        _until_answered(url, 10)
        assert process.is_running()


def test_connections_that_send_nothing_do_not_keep_scrapes_out(tmp_path: Path) -> None:
    port = _free_port()
    command, url = _metrics(port, tmp_path)
    with _limited([*command, "--scrape-timeout-s", "0.3"], url), contextlib.ExitStack() as flood:
        for _ in range(_FLOOD):
            flood.enter_context(socket.create_connection(("127.0.0.1", port)))
        _until_answered(url, 10)
