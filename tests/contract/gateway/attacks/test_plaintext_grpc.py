"""API keys guard the gateway. A neighbour on the network must not find a service behind it, without TLS and without keys."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest


async def started(service: str, *flags: str) -> tuple[int | None, str]:
    """The exit code of a service, None if it did not end by itself, and what it wrote."""
    environment = {**os.environ, f"TRIPTYCH_{service.upper()}_HOST": "0.0.0.0"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"triptych_{service}", "--port", "0", *flags, env=environment, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(60):
            while line := await process.stderr.readline():
                lines.append(line.decode())
                if "listening" in lines[-1]:
                    return None, "".join(lines)
            return await process.wait(), "".join(lines)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("service", ["frontend", "encoder", "engine", "mock"])
async def test_a_service_that_neighbours_would_reach_does_not_start(service: str) -> None:
    code, written = await started(service)
    assert code == 1, written
    (line,) = written.splitlines()
    assert "host 0.0.0.0 lets other machines reach a gRPC port without TLS" in line
    assert "tls_dir" in line
    assert "insecure_grpc" in line


async def test_who_asks_for_it_gets_it() -> None:
    code, written = await started("mock", "--insecure-grpc")
    assert code is None, written
    assert "listening on 0.0.0.0:" in written
