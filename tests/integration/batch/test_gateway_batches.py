"""/v1/batches of gateways that are killed, as processes, in front of `triptych mock`."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch
from support.batches import ENDED, chat_line, ended_batch, jsonl, output_of, start_batch
from support.mock import mock_server, script
from triptych_cli.stack.ports import free_port

_MODEL = "mocked"


@contextmanager
def gateway(port: int, mock_address: str, directory: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """A gateway as a process, killed at the end."""
    command = [sys.executable, "-m", "triptych_gateway", "--port", str(port), "--grpc-port", "0", "--no-access-log"]
    command += ["--frontend-addresses", mock_address, "--files-dir", str(directory), "--log-level", "WARNING", *flags]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


def client_at(port: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0)


async def serves(client: openai.AsyncOpenAI) -> None:
    """Wait until the gateway answers."""
    async with asyncio.timeout(60):
        while True:
            try:
                await client.models.list()
                return
            except (openai.APIConnectionError, openai.InternalServerError):
                await asyncio.sleep(0.1)


async def answered(client: openai.AsyncOpenAI, batch: Batch, least: int) -> Batch:
    """The batch, once so many of its lines were answered."""
    async with asyncio.timeout(120):
        while batch.request_counts is None or batch.request_counts.completed < least:
            assert batch.status not in ENDED
            await asyncio.sleep(0.05)
            batch = await client.batches.retrieve(batch.id)
    return batch


def lines(count: int, **fields: Any) -> bytes:
    """Lines to which the mock answers with their custom_ids."""
    made = (chat_line(f"line-{number}", script(text=f"answer {number}", **fields)) for number in range(count))
    return jsonl(line | {"body": line["body"] | {"model": _MODEL}} for line in made)


@pytest.mark.long
async def test_2000_lines_through_kills_are_answered_once_each(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    async with mock_server(served_model_name=_MODEL) as mock, client_at(port) as client:
        with gateway(port, mock.address, tmp_path) as process:
            await serves(client)
            # So slow that the counts, which are written once a second, show each third of the lines.
            batch = await start_batch(client, lines(2000, first_token_s=0.05))
            await answered(client, batch, 400)
            process.send_signal(signal.SIGKILL)
            process.wait()
        for least in (900, 1400):
            with gateway(port, mock.address, tmp_path) as process:
                await serves(client)
                batch = await answered(client, batch, least)
                assert batch.status == "in_progress"
                process.send_signal(signal.SIGKILL)
                process.wait()
            # A line that the kill has cut is answered again.
            with (tmp_path / "batches" / f"{batch.id}.jsonl").open("ab") as file:
                file.write(b'{"id": "batch_req_torn", "custom_id": "line-1999", "resp')
        with gateway(port, mock.address, tmp_path):
            await serves(client)
            batch = await ended_batch(client, batch, timeout_s=120)
            assert batch.status == "completed"
            assert batch.request_counts is not None
            assert batch.request_counts.model_dump() == {"total": 2000, "completed": 2000, "failed": 0}
            output = await output_of(client, batch.output_file_id)
    assert batch.error_file_id is None
    texts = {one: entry["response"]["body"]["choices"][0]["message"]["content"] for one, entry in output.items()}
    assert texts == {f"line-{number}": f"answer {number}" for number in range(2000)}


@pytest.mark.long
async def test_another_gateway_takes_over_from_one_that_is_killed(tmp_path: Path) -> None:
    """Both have the directory. The one that does not run the batch answers for it all the time."""
    ports = [free_port("127.0.0.1") for _ in range(2)]
    async with mock_server(served_model_name=_MODEL) as mock, client_at(ports[0]) as first, client_at(ports[1]) as second:
        with gateway(ports[0], mock.address, tmp_path) as process, gateway(ports[1], mock.address, tmp_path):
            await asyncio.gather(serves(first), serves(second))
            batch = await start_batch(first, lines(600, first_token_s=0.05))
            await answered(second, batch, 100)
            process.send_signal(signal.SIGKILL)
            process.wait()
            batch = await ended_batch(second, batch, timeout_s=60)
            assert batch.status == "completed"
            assert len(await output_of(second, batch.output_file_id)) == 600
