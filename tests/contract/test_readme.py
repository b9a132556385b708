"""The Python programs of the pages do what they show."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

from support.fakes.echo_frontend import echo_frontend
from support.mock import mock_server

_ROOT = Path(__file__).resolve().parents[2]
_PAGES = (
    "README.md",
    "docs/quickstart.md",
    "docs/batches.md",
    "docs/contracts.md",
    "docs/mock.md",
    "docs/offline.md",
    "clients/python/README.md",
)


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (_ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


async def run(program: str, address: str) -> str:
    """Run a program against this server in place of the frontend and the encoder. Returns what it prints."""
    program = program.replace("127.0.0.1:50051", address).replace("127.0.0.1:50052", address)
    environment = os.environ | {"TRIPTYCH_ADDRESS": address}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=_ROOT, stdout=asyncio.subprocess.PIPE, env=environment
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def test_the_program_with_stubs_talks_to_a_frontend() -> None:
    (program,) = python_blocks("docs/contracts.md")
    async with echo_frontend() as (frontend, address):
        assert await run(program, address) == "What is the capital of France? \n"
    assert frontend.requests[0].options.sampling.max_tokens == 64


async def test_the_client_of_the_quickstart_talks_to_a_frontend() -> None:
    (program,) = [block for block in python_blocks("docs/quickstart.md") if "from triptych import" in block]
    async with mock_server() as mock:
        assert await run(program, mock.address) == "Where is the triangle?\nWhat is the capital of France?\n"


async def test_the_programs_of_the_clients_page_talk_to_frontend_and_encoder() -> None:
    chat, stage = python_blocks("clients/python/README.md")
    async with mock_server() as mock:
        assert (await run(chat, mock.address)).startswith("What is this?\nTell a story.prompt_tokens: ")
        assert re.fullmatch(r"[1-9]\d* CACHE_TIER_LOCAL\n", await run(stage, mock.address))


async def test_the_programs_of_the_mocks_page() -> None:
    echo, full = python_blocks("docs/mock.md")
    async with mock_server() as mock:
        assert await run(echo, mock.address) == "Hello there\n"
        assert await run(full, mock.address) == "2.0\n"


def test_all_programs_are_python() -> None:
    for page in _PAGES:
        for number, program in enumerate(python_blocks(page)):
            compile(program, f"program {number} of {page}", "exec")
