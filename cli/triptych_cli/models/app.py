"""The command lines that concern models on this machine: `triptych fetch`, `list`, `rm`."""

from __future__ import annotations

from typing import Annotated

import typer
from triptych_common.settings import DEFAULT_MODEL

from triptych_cli.models.completion import complete_model

app = typer.Typer()


@app.command()
@app.command("pull", hidden=True)
def fetch(
    model: Annotated[str, typer.Argument(help="A directory, a GGUF file, a built-in name or a hub id (org/name).")] = DEFAULT_MODEL,
) -> None:
    """Fetch a model to this machine, so that `serve` can start without a network."""
    from rich.console import Console

    from triptych_cli.models.fetch import fetch as run

    console = Console(stderr=True, highlight=False)
    path, was_there = run(model, console)
    if was_there:
        console.print(f"{model} is there already", soft_wrap=True)
    typer.echo(path)


@app.command("list")
def list_models() -> None:
    """List the models on this machine: built-in ones, prepared GGUF files, those of the hub's cache."""
    import sys

    from rich.console import Console

    from triptych_cli.models.installed import installed, table

    # In a pipe, a model is on one line.
    Console(highlight=False, width=None if sys.stdout.isatty() else 1000).print(table(installed()))


@app.command()
def rm(
    models: Annotated[list[str], typer.Argument(help="Names, as `triptych list` shows them.", autocompletion=complete_model)],
) -> None:
    """Remove models from this machine. GGUF files themselves stay."""
    from triptych_cli.models.installed import remove
    from triptych_cli.printable import printable

    for model in remove(models):
        typer.echo(f"removed {printable(model.name)}: {model.num_bytes / 1e6:,.0f} MB")
