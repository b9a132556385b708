"""`triptych top` in a terminal: it shows the suite, outlives the gateway, and Ctrl-C leaves the terminal as it was."""

from __future__ import annotations

import asyncio
import os
import pty
import sys

from support.fakes.frontend import FakeFrontend
from support.fakes.gateway import gateway_server
from support.terminal import Terminal, interruptible_children
from triptych.v1 import common_pb2, engine_pb2, generation_pb2

_COMMAND = ["setsid", "--ctty", "--wait", sys.executable, "-c", "from triptych_cli.main import app; app()", "top", "--url"]
_ENVIRONMENT = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "30"}


async def test_a_look_at_a_suite() -> None:
    frontend = FakeFrontend()
    instance = common_pb2.Instance(id="engine-1", state=common_pb2.SERVER_STATE_SERVING)
    engine = generation_pb2.EngineLoad(instance=instance, load=engine_pb2.Load(num_running=7, num_blocks=4, num_free_blocks=1))
    frontend.load = generation_pb2.GetLoadResponse(instance=frontend.instance, engines=[engine])
    leader, follower = pty.openpty()
    terminal = Terminal(leader)
    async with asyncio.timeout(60):
        async with gateway_server(frontend) as place:
            with interruptible_children():
                process = await asyncio.create_subprocess_exec(
                    *(*_COMMAND, "http://{}:{}".format(*place)), stdin=follower, stdout=follower, stderr=follower, env=_ENVIRONMENT
                )
            os.close(follower)
            await terminal.wait_for(r"\x1b\[\?1049h")
            await terminal.wait_for(r"engine-1 .*serving.* 7 .*75%")
        await terminal.wait_for("no gateway answers at")
        terminal.type("\x03")
        await terminal.wait_for(r"\x1b\[\?25h.*\x1b\[\?1049l")
        assert await process.wait() == 0
    os.close(leader)
