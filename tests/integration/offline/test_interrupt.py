"""Ctrl-C in the middle of a call: the requests are cancelled, the program goes on, and the services too."""

from __future__ import annotations

import asyncio
import signal
import sys

from support.mock import mock_server, script
from support.waiting import until

_PROGRAM = """
import signal, sys
from triptych import LLM

# A shell that started the tests in the background made children ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
with LLM(address=sys.argv[1]) as llm:
    try:
        llm.generate([sys.argv[2]] * 20, use_tqdm=False)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    sys.stdin.readline()
    print(llm.generate("and on", use_tqdm=False)[0].outputs[0].text, flush=True)
"""


async def test_ctrl_c_cancels_the_requests() -> None:
    async with asyncio.timeout(60), mock_server() as mock:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _PROGRAM, mock.address, script(fault={"stall": True})),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        # Preprocessing does not stall; what is live for long is the generation.
        await until(lambda: mock.server.num_live_requests == 20, timeout_s=30)
        process.send_signal(signal.SIGINT)
        assert await process.stdout.readline() == b"interrupted\n"
        await until(lambda: mock.server.num_live_requests == 0)
        process.stdin.write(b"\n")
        assert await process.stdout.readline() == b"and on\n"
        assert await process.wait() == 0
