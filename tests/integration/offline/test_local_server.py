"""`LocalServer`: ready when it returns, gone when its program ends in whatever way, clear about what went wrong."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from triptych import LocalServer
from triptych.errors import StartupError

pytestmark = pytest.mark.model
_MODEL = "all-minilm-l6-v2"
_GONE_S = 30.0


def family(pid: int) -> list[psutil.Process]:
    """A process and all of its descendants."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, _GONE_S)
    assert not alive


@pytest.mark.long
def test_services_answer_and_end_with_close_and_with_the_object() -> None:
    server = LocalServer(_MODEL, engine={"max_num_seqs": 8})
    processes = family(server.pid)
    assert sorted(next(arg for arg in process.cmdline() if arg.startswith("triptych_")) for process in processes) == [
        "triptych_cli",
        "triptych_engine",
        "triptych_frontend",
        "triptych_gateway",
    ]
    assert server.addresses.model == _MODEL
    assert len(server.addresses.frontends) == len(server.addresses.engines) == 1
    assert server.addresses.encoders == ()
    assert server.addresses.gateway.startswith("http://127.0.0.1:")
    server.check()
    del server
    gc.collect()
    assert_gone(processes)


@pytest.mark.long
def test_services_that_end_by_themselves_are_noticed(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    with LocalServer(_MODEL, log_file=log) as server:
        processes = family(server.pid)
        os.kill(server.pid, signal.SIGTERM)
        assert_gone(processes)
        with pytest.raises(StartupError, match=r"have ended \(exit code 0\):(.|\n)*stopping engine"):
            server.check()
    server.close()
    server.check()
    assert f"Triptych serves {_MODEL}" in log.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "no-such-model"}, "no-such-model"),
        ({"model": _MODEL, "engine": {"max_nm_seqs": 3}}, "did you mean --engine.max-num-seqs"),
        ({"model": _MODEL, "engine": {"dtype": "complex"}}, "dtype"),
        ({"model": _MODEL, "colour": "red"}, "--colour"),
    ],
)
def test_a_failed_start_has_the_last_lines(arguments: dict, message: str) -> None:
    with pytest.raises(StartupError, match=message) as raised:
        LocalServer(**arguments)
    assert "could not start (exit code" in str(raised.value)


_PROGRAM = """
import os, sys, threading, time
from triptych import LLM

def start():
    # The thread ends before the program does.
    global llm
    llm = LLM("all-minilm-l6-v2")

thread = threading.Thread(target=start)
thread.start()
thread.join()
llm.embed("a", use_tqdm=False)
if os.fork() == 0:
    # A fork holds all files of its parent, and ends without harm to the services.
    if {ending!r} != "kill":
        sys.exit()
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(llm.server.pid, flush=True)
sys.stdin.readline()
if {ending!r} == "kill":
    print("running", flush=True)
    llm.embed((f"text {{number}}" for number in range(10**9)), use_tqdm=False)
llm.embed("a", use_tqdm=False)
sys.exit(3)
"""


@contextmanager
def program(ending: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _PROGRAM.format(ending=ending)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            # The fork, too.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("ending", ["kill", "exit"])
def test_nothing_survives_the_program(ending: str) -> None:
    with program(ending) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        processes = family(int(process.stdout.readline()))
        assert len(processes) == 4
        process.stdin.write("\n")
        process.stdin.flush()
        if ending == "kill":
            assert process.stdout.readline() == "running\n"
            process.kill()
        assert_gone(processes)
        assert process.wait(_GONE_S) == (-signal.SIGKILL if ending == "kill" else 3)
