"""Writes the client for threads from the one for asyncio: `python -m tools.gen_sync_client [--check]`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "clients" / "python" / "triptych" / "client"
#: Whole words of aio.py -> what stands for them in sync.py.
WORDS = {
    "AsyncClient": "Client",
    "AsyncChatStream": "ChatStream",
    "AsyncCompleteStream": "CompleteStream",
    "aio_streams": "streams",
    "open_aio_channel": "open_channel",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
}
#: Texts that differ otherwise, in order.
TEXTS = (
    ('"""The client for asyncio."""', '"""The client for threads. tools/gen_sync_client.py makes it from aio.py."""'),
    ("for asyncio. `Client` is the same for threads.", "for threads. `ASYNC` is the same for asyncio."),
    ("An `AsyncClient` belongs", "An `ASYNC` belongs"),
    ("grpc.aio.ClientInterceptor", "Any"),
    ("grpc.aio.", "grpc."),
    ("async def ", "def "),
    ("async with ", "with "),
    ("async for ", "for "),
    ("await ", ""),
)


def sync_source(source: str) -> str:
    """The module for threads."""
    for old, new in TEXTS:
        source = source.replace(old, new)
    for old, new in WORDS.items():
        source = re.sub(rf"\b{old}\b", new, source)
    source = source.replace("`ASYNC`", "`AsyncClient`")
    # Imports are sorted by their names, which have changed.
    for command in (["check", "--fix", "--select", "I,F401"], ["format"]):
        run = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(CLIENT / "sync.py"), "-"]
        source = subprocess.run(run, input=source, capture_output=True, text=True, check=True).stdout
    return source


def main() -> int:
    """Write the module, or with --check tell whether it is as it should be."""
    target, source = CLIENT / "sync.py", sync_source((CLIENT / "aio.py").read_text(encoding="utf-8"))
    if "--check" in sys.argv[1:]:
        if target.read_text(encoding="utf-8") != source:
            print(f"{target} is not what aio.py makes of it; run: python -m tools.gen_sync_client", file=sys.stderr)
            return 1
        return 0
    target.write_text(source, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
