"""`triptych mock` with a gateway in front of it, as processes: a server of the REST API that answers what its requests tell it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
from triptych_cli.stack.ports import free_port

_HOST = "127.0.0.1"
#: Longest time for a service to start or to stop, in seconds.
_START_S, _STOP_S = 60.0, 30.0


@contextlib.contextmanager
def scripted_gateway(model: str) -> Iterator[str]:
    """A gateway that is ready, on a free port, for the duration of the block. Yields its URL, without /v1.

    Args:
        model: the name of the model that the mock pretends to serve.
    """
    mock, gateway = free_port(_HOST), free_port(_HOST)
    mock_flags = [
        "--port",
        str(mock),
        "--control-port",
        str(free_port(_HOST)),
        "--served-model-name",
        model,
        "--shutdown-grace-s",
        "0",
    ]
    gateway_flags = ["--port", str(gateway), "--grpc-port", "0", "--frontend-addresses", f"{_HOST}:{mock}", "--no-access-log"]
    with _service("triptych_mock", mock_flags) as first, _service("triptych_gateway", gateway_flags) as second:
        url = f"http://{_HOST}:{gateway}"
        _wait_until_ready(url, first, second)
        yield url


@contextlib.contextmanager
def _service(module: str, flags: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-m", module, *flags]) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            finally:
                process.kill()


def _wait_until_ready(url: str, *processes: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + _START_S
    with httpx.Client(base_url=url, trust_env=False) as http:
        while True:
            with contextlib.suppress(httpx.TransportError):
                if http.get("/ready").status_code == 200:
                    return
            ended = [process.args for process in processes if process.poll() is not None]
            assert not ended, f"ended too early: {ended}"
            assert time.monotonic() < deadline_s, f"{url}/ready does not answer 200"
            time.sleep(0.05)
