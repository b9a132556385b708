"""Faults of the services of `triptych serve`: they are killed, stopped and drained."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import grpc
import psutil
from triptych.v1 import control_pb2, control_pb2_grpc
from triptych_common.rpc.channels import CHANNEL_OPTIONS

from support.stack import Serving

#: How long a stopped process is stopped, in seconds.
STOP_S = 20.0
#: What may happen to which services.
FAULTS = [
    ("engine", "kill"),
    ("engine", "stop"),
    ("engine", "drain"),
    ("encoder", "kill"),
    ("encoder", "stop"),
    ("encoder", "drain"),
]


def processes(stack: Serving, kind: str) -> list[psutil.Process]:
    """The processes of the services of a kind, without those that have ended."""
    found = []
    for child in psutil.Process(stack.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # a zombie is one, too
            if f"triptych_{kind}" in child.cmdline():
                found.append(child)
    return found


def control_of(process: psutil.Process) -> grpc.aio.Channel:
    arguments = process.cmdline()
    return grpc.aio.insecure_channel(f"127.0.0.1:{arguments[arguments.index('--control-port') + 1]}", CHANNEL_OPTIONS)


async def disturb(stack: Serving, kind: str, fault: str, victim: psutil.Process) -> None:
    """One fault, from its beginning until the service is ready again."""
    if fault in ("kill", "restart"):
        ready = rf"{kind}\S* is ready"
        num_starts = len(re.findall(ready, stack.log))
        if fault == "kill":
            victim.kill()
        else:
            victim.terminate()
        await asyncio.to_thread(stack.wait_for, ready, num_starts + 1, 120)
    elif fault == "stop":
        victim.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(STOP_S)
        finally:
            victim.send_signal(signal.SIGCONT)
        await asyncio.sleep(2)
    else:
        async with control_of(victim) as channel:
            control = control_pb2_grpc.ControlServiceStub(channel)
            await control.Drain(control_pb2.DrainRequest(timeout_s=30))
            await control.WakeUp(control_pb2.WakeUpRequest())


@contextmanager
def another_gateway(command: list[str]) -> Iterator[str]:
    """A second gateway like the one that was started so; yields its URL."""
    for flag in ("--port", "--grpc-port"):
        command[command.index(flag) + 1] = "0"
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            url = next(found[1] for line in process.stderr if (found := re.search(r"listening on (http://\S+),", line)))
            # What it logs later must not fill the pipe.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield url
        finally:
            process.kill()
