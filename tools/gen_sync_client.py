"""Writes the client for threads from the one for asyncio: `python -m tools.gen_sync_client [--check]`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "clients" / "python" / "triptych" / "client"
#: Module for asyncio -> the one for threads.
MODULES = {"aio.py": "sync.py", "aio_streams.py": "streams.py"}
#: Whole words -> what stands for them in the module for threads.
WORDS = {
    "AioResponses": "Responses",
    "AsyncClient": "Client",
    "AsyncIterator": "Iterator",
    "AsyncStream": "Stream",
    "AsyncChatStream": "ChatStream",
    "AsyncCompleteStream": "CompleteStream",
    "aio_rpc": "rpc",
    "aio_streams": "streams",
    "open_aio_channel": "open_channel",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
}
#: Texts that differ otherwise, in order.
TEXTS = (
    ('for asyncio."""', 'for threads. tools/gen_sync_client.py makes it from `ORIGIN`."""'),
    ("for asyncio. `Client` is the same for threads.", "for threads. `ASYNC` is the same for asyncio."),
    ("An `AsyncClient` belongs", "An `ASYNC` belongs"),
    ("An asynchronous iterator", "An iterator"),
    ("`async with`", "`with`"),
    ("Cancelling the task that reads a stream cancels its call, too.", "One thread reads a stream; any thread may close it."),
    ("May be called again.", "May be called again, by any thread, and by a signal handler."),
    ("grpc.aio.ClientInterceptor", "Any"),
    ("import Self, Unpack", "import Any, Self, Unpack"),
    ("grpc.aio.", "grpc."),
    ("async def ", "def "),
    ("async with ", "with "),
    ("async for ", "for "),
    ("await ", ""),
)


def sync_source(origin: str) -> str:
    """The module for threads, from the name of the one for asyncio."""
    source = (CLIENT / origin).read_text(encoding="utf-8")
    for old, new in TEXTS:
        source = source.replace(old, new)
    for old, new in WORDS.items():
        source = re.sub(rf"\b{old}\b", new, source)
    source = source.replace("`ASYNC`", "`AsyncClient`").replace("`ORIGIN`", origin)
    # Imports are sorted by their names, which have changed.
    for command in (["check", "--fix", "--select", "I,F401"], ["format"]):
        run = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(CLIENT / MODULES[origin]), "-"]
        source = subprocess.run(run, input=source, capture_output=True, text=True, check=True).stdout
    return source


def main() -> int:
    """Write the modules, or with --check tell whether they are as they should be."""
    for origin, target in MODULES.items():
        path, source = CLIENT / target, sync_source(origin)
        if "--check" not in sys.argv[1:]:
            path.write_text(source, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != source:
            print(f"{path} is not what {origin} makes of it; run: python -m tools.gen_sync_client", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
