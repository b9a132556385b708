"""The programs of README.md and docs/quickstart.md do what they show."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from support.fakes.echo_frontend import echo_frontend

_ROOT = Path(__file__).resolve().parents[2]


def python_blocks() -> list[str]:
    pages = [_ROOT / "README.md", _ROOT / "docs" / "quickstart.md"]
    return [block for page in pages for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)]


async def test_the_grpc_program_talks_to_a_frontend() -> None:
    (program,) = [block for block in python_blocks() if "import grpc" in block]
    assert len(program.splitlines()) <= 22
    async with echo_frontend() as (frontend, address):
        program = program.replace("127.0.0.1:50051", address)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
    assert output.decode() == "What is the capital of France? \n"
    assert frontend.requests[0].options.sampling.max_tokens == 64


def test_all_programs_are_python() -> None:
    for number, program in enumerate(python_blocks()):
        compile(program, f"program {number} of the pages", "exec")
