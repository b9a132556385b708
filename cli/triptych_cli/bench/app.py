"""The command line of `triptych bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def bench(
    url: Annotated[str, typer.Argument(help="Any server with OpenAI's API, as http://127.0.0.1:8000.")],
    model: Annotated[str | None, typer.Option(help="Name of the model.  [default: the first that the server lists]")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Streams at once, one level after the other.  [default: 1,4,16]")] = None,
    rate: Annotated[
        str | None, typer.Option(help="Requests a second instead, as 0.5,1,2: they do not wait for answers (a Poisson process).")
    ] = None,
    num_prompts: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Requests of a level.  [default: 4 per stream, 20 s of a rate; at least 8]"),
    ] = None,
    input_len: Annotated[int, typer.Option(min=1, max=1_000_000, help="Tokens of a prompt. No two prompts begin alike.")] = 128,
    output_len: Annotated[int, typer.Option(min=1, max=1_000_000, help="Tokens of an answer.")] = 128,
    completions: Annotated[bool, typer.Option("--completions", help="Ask /v1/completions, not for chats.")] = False,
    ignore_eos: Annotated[
        bool,
        typer.Option(help="Let the server ignore end tokens, so that all answers are as long. OpenAI's own refuses it."),
    ] = True,
    goodput: Annotated[
        list[str] | None,
        typer.Option(help="Count requests a second within limits in milliseconds: ttft:500, tpot:50, e2el:5000. May be repeated."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file; - is standard output.", dir_okay=False)
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures into this SVG file.", dir_okay=False)] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the server's key.  [default: $TRIPTYCH_API_KEY]", dir_okay=False)
    ] = None,
    cacert: Annotated[
        Path | None, typer.Option(help="Certificate of the authority that vouches for a server with HTTPS.", dir_okay=False)
    ] = None,
) -> None:
    """Measure any OpenAI-compatible server: throughput, TTFT, ITL and goodput by load. Ctrl-C prints what was measured."""
    from triptych_cli.bench.command import BenchOptions
    from triptych_cli.bench.command import bench as run

    options = BenchOptions(
        url=url,
        model=model,
        concurrency=concurrency,
        rate=rate,
        num_prompts=num_prompts,
        input_len=input_len,
        output_len=output_len,
        completions=completions,
        ignore_eos=ignore_eos,
        goodput=goodput or (),
        json_file=json_file,
        plot=plot,
        api_key_file=api_key_file,
        cacert=cacert,
    )
    raise typer.Exit(run(options))
