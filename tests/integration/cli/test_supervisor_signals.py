"""The supervisor as a process of its own: what signals do, and that nothing outlives it."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.children import pids

_TESTS = Path(__file__).resolve().parents[2]
_SCRIPT = str(_TESTS / "support" / "supervised.py")


@contextlib.contextmanager
def supervised(directory: Path, *children: str) -> Iterator[subprocess.Popen[str]]:
    """A supervisor whose children are ready."""
    environment = {**os.environ, "PYTHONPATH": str(_TESTS)}
    with subprocess.Popen(
        [sys.executable, _SCRIPT, str(directory), *children],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "READY\n"
            yield process
        finally:
            process.kill()


def processes(directory: Path, *names: str) -> list[psutil.Process]:
    return [psutil.Process(pid) for name in names for pid in pids(directory, name)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_all_in_order_and_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    with supervised(tmp_path, "engine", "frontend", "gateway") as supervisor:
        children = processes(tmp_path, "engine", "frontend", "gateway")
        supervisor.send_signal(number)
        _, log = supervisor.communicate(timeout=30)
        assert supervisor.returncode == 0
        assert not any(child.is_running() for child in children)
    assert (tmp_path / "stopped").read_text().split() == ["gateway", "frontend", "engine"]
    assert "engine   │ engine line 29\n" in log


def test_the_same_signal_twice_at_once_is_one_wish(tmp_path: Path) -> None:
    with supervised(tmp_path, "engine") as supervisor:
        supervisor.send_signal(signal.SIGINT)
        supervisor.send_signal(signal.SIGTERM)
        supervisor.communicate(timeout=30)
    assert (tmp_path / "stopped").read_text() == "engine\n"


def test_a_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    with supervised(tmp_path, "engine:stubborn") as supervisor:
        (child,) = processes(tmp_path, "engine")
        start_s = time.monotonic()
        # Well within the grace of 15 s, whenever the supervisor takes the second one for another wish.
        while supervisor.poll() is None and time.monotonic() - start_s < 10:
            supervisor.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                supervisor.wait(timeout=0.2)
        assert supervisor.returncode == 0
        assert not child.is_running()


def test_no_child_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with supervised(tmp_path, "engine:stubborn", "gateway") as supervisor:
        children = processes(tmp_path, "engine", "gateway")
        supervisor.kill()
        supervisor.wait(timeout=30)
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not alive


def test_failure_at_start_ends_with_1_and_the_reason(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(_TESTS)}
    done = subprocess.run(
        [sys.executable, _SCRIPT, str(tmp_path), "engine:refuse", "gateway"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "engine ended before it was ready (exit code 1)" in done.stderr
    assert "    engine cannot start: the model is unsupported" in done.stderr
    assert not any(psutil.pid_exists(pid) for pid in pids(tmp_path, "gateway"))


def test_ctrl_c_in_a_terminal_reaches_only_the_supervisor(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(_TESTS), "TERM": "xterm"}
    # setsid --ctty: the terminal becomes the supervisor's own, so the kernel turns ^C into a signal for its process group.
    command = ["setsid", "--ctty", "--wait", sys.executable, _SCRIPT, str(tmp_path), "engine", "gateway"]
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        seen = b""
        while b"READY" not in seen:
            seen += os.read(leader, 4096)
        os.write(leader, b"\x03")
        with contextlib.suppress(OSError):
            while chunk := os.read(leader, 4096):
                seen += chunk
        assert process.wait(timeout=30) == 0
    os.close(leader)
    # A child that the terminal had signalled too would have died of SIGINT and been started again.
    assert (tmp_path / "stopped").read_text().split() == ["gateway", "engine"]
    assert b"died" not in seen
    assert b"engine is ready" in seen
