"""The command line of a batch."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from triptych_cli.errors import CommandError


def batch(source: Path, output: Path, *, model: str, url: str | None, max_in_flight: int, api_key_file: Path | None) -> None:
    """Run a batch with the key of a file or of the environment. Raises CommandError."""
    try:
        from triptych_cli.batch.run import run_batch
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("triptych"):
            raise
        raise CommandError(
            f"batch needs {error.name}, which is not installed; run: pip install 'triptych-server[batch]'"
        ) from error
    try:
        key = api_key_file.read_text(encoding="utf-8").strip() if api_key_file else os.environ.get("TRIPTYCH_GATEWAY_API_KEY")
    except OSError as error:
        raise CommandError(f"cannot read {api_key_file}: {error.strerror}", exit_code=2) from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{api_key_file} holds no key: it is not text", exit_code=2) from error
    if key and not key.isprintable():
        raise CommandError(f"{api_key_file or 'TRIPTYCH_GATEWAY_API_KEY'} holds no key: a key is one line of text", exit_code=2)
    # Names of files are not markup.
    console = Console(stderr=True, highlight=False, markup=False)
    run_batch(source, output, model=model, url=url, max_in_flight=max_in_flight, api_key=key, console=console)
