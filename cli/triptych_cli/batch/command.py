"""The command line of a batch."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from triptych.installation import install_command

from triptych_cli.api_key import read_api_key
from triptych_cli.errors import CommandError


def batch(source: Path, output: Path, *, model: str, url: str | None, max_in_flight: int, api_key_file: Path | None) -> None:
    """Run a batch with the key of a file or of the environment. Raises CommandError."""
    try:
        from triptych_cli.batch.run import run_batch
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("triptych"):
            raise
        raise CommandError(
            f"batch needs {error.name}, which is not installed; run: {install_command('triptych-server', 'batch')}"
        ) from error
    key = read_api_key(api_key_file)
    # Names of files are not markup.
    console = Console(stderr=True, highlight=False, markup=False)
    run_batch(source, output, model=model, url=url, max_in_flight=max_in_flight, api_key=key, console=console)
