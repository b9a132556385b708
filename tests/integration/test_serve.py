"""`triptych serve` as a person runs it: real processes, the real default model."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import psutil
import pytest
from triptych_common.errors import StartupError
from triptych_common.model_store import resolve_model
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]
_QUESTION = {
    "model": DEFAULT_MODEL,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 32,
}


class Serving:
    """A running `triptych serve` and what it has written so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log = ""
        self._grown = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._grown:
                self.log += line
                self._grown.notify_all()
        with self._grown:
            self._grown.notify_all()

    def wait_for(self, pattern: str, times: int = 1, timeout_s: float = 240) -> re.Match[str]:
        """Wait until a pattern was written so many times."""
        with self._grown:
            found = self._grown.wait_for(lambda: len(re.findall(pattern, self.log)) >= times, timeout_s)
            assert found, f"no {pattern!r} in:\n{self.log}"
            return [*re.finditer(pattern, self.log)][times - 1]

    def ask(self, url: str) -> str:
        """The answer to the question, over REST."""
        response = httpx.post(f"{url}/v1/chat/completions", json=_QUESTION, timeout=120, trust_env=False)
        return str(response.raise_for_status().json()["choices"][0]["message"]["content"])

    def services(self) -> dict[str, psutil.Process]:
        """The processes of the services, by name."""
        children = psutil.Process(self.process.pid).children()
        return {next(arg for arg in child.cmdline() if arg.startswith("triptych_"))[9:]: child for child in children}


@contextlib.contextmanager
def serving(*args: str) -> Iterator[Serving]:
    try:
        resolve_model(DEFAULT_MODEL)
    except StartupError as error:
        pytest.skip(str(error))
    ports = ["--port", "0", "--frontend-port", "0", "--engine-port", "0"]
    command = [sys.executable, "-c", "from triptych_cli.main import app; app()", "serve", *ports, *args]
    environment = {**os.environ, "COLUMNS": "200"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as process:
        try:
            yield Serving(process)
        finally:
            process.kill()


def test_it_answers_recovers_from_a_killed_engine_and_leaves_no_process() -> None:
    with serving("--engine.kv-cache-memory", "64M", "--engine.max-num-seqs", "8") as server:
        url = server.wait_for(r"Triptych serves \S+ at (http://\S+)")[1]
        assert "Paris" in server.ask(url)
        before = server.services()
        before["engine"].kill()
        server.wait_for(r"engine died \(SIGKILL\); its last lines:")
        server.wait_for(r"engine is ready", times=2)
        server.wait_for(r"gateway +│ .* is ready", times=2)
        assert "Paris" in server.ask(url)
        after = server.services()
        assert after["engine"] != before["engine"]
        assert after["gateway"] == before["gateway"]
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=60) == 0
        assert not any(service.is_running() for service in after.values())


def test_a_model_that_cannot_be_served_ends_it_with_the_reason() -> None:
    with serving("--max-model-len", "100000") as server:
        assert server.process.wait(timeout=240) == 1
        server.wait_for(r"max_model_len 100000 is more than the model's context of 8192 tokens")
        server.wait_for(r"triptych: (engine|frontend) ended before it was ready \(exit code 1\)")
        assert server.log.count("starting") == 0
