"""Runs a module of this package as a process with limits of time and memory, which reads one file.

Parsers of large formats take seconds, and for a file that was made for it hours and all memory. One of them that dies takes nothing
else with it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from subprocess import PIPE


class UnreadableError(Exception):
    """The file cannot be read. The message says why."""


class TooLargeError(UnreadableError):
    """It can be read, but would take more than is allowed."""


class BusyError(UnreadableError):
    """The machine had too little time for it, and may have it later."""


#: Wall time as a multiple of the processor's.
_WALL = 2
#: The exit codes with which the process says on standard error why it does not read the file.
_REFUSED: dict[int, type[UnreadableError]] = {3: UnreadableError, 4: TooLargeError}


@dataclass(frozen=True)
class Limits:
    """What the process may take for a file.

    Attributes:
        timeout_s: time of the processor; wall time is twice as much.
        max_memory: bytes of addresses.
    """

    timeout_s: float
    max_memory: int


async def read_in_process(command: Sequence[str], content: bytes, limits: Limits) -> bytes:
    """What the process writes for a file. If the caller is cancelled, the process ends.

    Args:
        command: of Python, e.g. -m and a module that calls `serve_file`.

    Raises:
        UnreadableError: the process refused the file, or died of it.
        TooLargeError: it took too much time of the processor or memory, or refused the file for its size.
        BusyError: other processes had the processor meanwhile.
    """
    # Threads of a library for matrices would reserve memory that counts.
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    # Not by uvloop, which forks and so runs gRPC's handlers: with another thread within gRPC, the child died at once.
    process = subprocess.Popen([sys.executable, *command], stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env)  # noqa: ASYNC220
    try:
        output, errors = await asyncio.to_thread(process.communicate, content, _WALL * limits.timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.communicate)  # closes the pipes, but that of a file which was not written to its end
        if process.stdin is not None:
            process.stdin.close()
        raise BusyError(f"it was not read within {_WALL * limits.timeout_s:g} s") from None
    finally:
        if process.poll() is None:
            process.kill()
            await asyncio.to_thread(process.wait)
    if process.returncode == 0:
        return output
    if process.returncode == -signal.SIGXCPU:
        raise TooLargeError(f"it takes longer than {limits.timeout_s:g} s to read")
    if refusal := _REFUSED.get(process.returncode):
        raise refusal(errors.decode(errors="replace").strip())
    raise UnreadableError("it is damaged or too large")


def serve_file(read: Callable[[bytes], bytes], limits: Limits) -> int:
    """The process: read standard input, write what `read` makes of it. Returns the exit code."""
    logging.disable()  # standard error is for the reason
    resource.setrlimit(resource.RLIMIT_AS, (limits.max_memory, limits.max_memory))
    timeout_s = math.ceil(limits.timeout_s)
    resource.setrlimit(resource.RLIMIT_CPU, (timeout_s, timeout_s + 1))  # at the second one, the signal is SIGKILL
    try:
        try:
            output = read(sys.stdin.buffer.read())
        except MemoryError:
            raise TooLargeError(f"it takes more than {limits.max_memory >> 20} MiB of memory to read") from None
    except UnreadableError as error:
        sys.stderr.write(str(error))
        return next(code for code, kind in _REFUSED.items() if kind is type(error))
    sys.stdout.buffer.write(output)
    return 0
