"""Runs a module of this package as a process with limits of time and memory, which reads one file.

Parsers of large formats take seconds, and for a file that was made for it hours and all memory. One of them that dies takes nothing
else with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: The exit code with which the process says on standard error why it does not read the file.
_REFUSED = 3


class UnreadableError(Exception):
    """The file cannot be read. The message says why."""


@dataclass(frozen=True)
class Limits:
    """What the process may take for a file.

    Attributes:
        timeout_s: wall time, and time of the processor.
        max_memory: bytes of addresses.
    """

    timeout_s: float
    max_memory: int


async def read_in_process(command: Sequence[str], content: bytes, limits: Limits) -> bytes:
    """What the process writes for a file. If the caller is cancelled, the process ends.

    Args:
        command: of Python, e.g. -m and a module that calls `serve_file`.

    Raises:
        UnreadableError: the process refused the file, died of it, or took too long.
    """
    pipe = asyncio.subprocess.PIPE
    # Threads of a library for matrices would reserve memory that counts.
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdin=pipe, stdout=pipe, stderr=pipe, env=env)
    try:
        async with asyncio.timeout(limits.timeout_s):
            output, errors = await process.communicate(content)
    except TimeoutError:
        raise UnreadableError(f"it takes longer than {limits.timeout_s:g} s to read") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 0:
        return output
    refused = process.returncode == _REFUSED
    raise UnreadableError(errors.decode(errors="replace").strip() if refused else "it is damaged or too large")


def serve_file(read: Callable[[bytes], bytes], limits: Limits) -> int:
    """The process: read standard input, write what `read` makes of it. Returns the exit code."""
    logging.disable()  # standard error is for the reason
    resource.setrlimit(resource.RLIMIT_AS, (limits.max_memory, limits.max_memory))
    resource.setrlimit(resource.RLIMIT_CPU, (int(limits.timeout_s), int(limits.timeout_s)))
    try:
        output = read(sys.stdin.buffer.read())
    except UnreadableError as error:
        sys.stderr.write(str(error))
        return _REFUSED
    sys.stdout.buffer.write(output)
    return 0
