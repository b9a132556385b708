"""A process that reads a file, and what its end means."""

from __future__ import annotations

import pytest
from triptych_gateway.file_process import BusyError, Limits, TooLargeError, UnreadableError, read_in_process

LIMITS = Limits(60.0, 4 << 30)
PROGRAM = """
import sys
from triptych_gateway.file_process import Limits, TooLargeError, UnreadableError, serve_file
def read(content):
    {line}
sys.exit(serve_file(read, Limits({timeout_s}, 4 << 30)))
"""


async def read(line: str, limits: Limits = LIMITS) -> bytes:
    return await read_in_process(("-c", PROGRAM.format(line=line, timeout_s=limits.timeout_s)), b"the file", limits)


async def test_output() -> None:
    assert await read("return content + b' was read'") == b"the file was read"


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ("raise UnreadableError('it has no pages')", UnreadableError, "it has no pages"),
        ("raise TooLargeError('it is longer than 1 s')", TooLargeError, "it is longer than 1 s"),
        ("import os; os.kill(os.getpid(), 9)", UnreadableError, "it is damaged or too large"),
        ("raise ValueError('a fault of the parser')", UnreadableError, "it is damaged or too large"),
    ],
)
async def test_a_refused_file(line: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(UnreadableError) as raised:
        await read(line)
    assert (type(raised.value), str(raised.value)) == (kind, said)


async def test_a_file_that_takes_too_much() -> None:
    with pytest.raises(TooLargeError, match=r"it takes longer than 1 s to read"):
        await read("while True: pass", Limits(1.0, 4 << 30))
    with pytest.raises(TooLargeError, match=r"it takes more than 4096 MiB of memory to read"):
        await read("return bytes(8 << 30)")


async def test_a_machine_that_has_no_time_is_not_the_files_fault() -> None:
    with pytest.raises(BusyError, match=r"it was not read within 0\.4 s"):
        await read("import time; time.sleep(30)", Limits(0.2, 4 << 30))
