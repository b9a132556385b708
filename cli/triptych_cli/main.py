"""The command `triptych`. Each command imports its dependencies when it runs, so that `triptych --help` is fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from triptych_common import __version__
from triptych_common.settings import DEFAULT_MODEL

from triptych_cli.bench.app import app as bench_app
from triptych_cli.chat.app import app as chat_app
from triptych_cli.errors import CommandError
from triptych_cli.keys.command import app as keys_app
from triptych_cli.models.app import app as models_app
from triptych_cli.models.completion import complete_model
from triptych_cli.single import app as single_app
from triptych_cli.stack.foreign_flags import help_text, translate
from triptych_cli.stack.service_flags import split_service_args


class _Group(typer.core.TyperGroup):
    """Shows a CommandError as one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CommandError as error:
            typer.echo(f"triptych: {error}", err=True)
            raise typer.Exit(error.exit_code) from error


class _ServeCommand(typer.core.TyperCommand):
    """Translates the flags of other servers, and removes those of single services, before the rest is parsed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # the shell completes a line, which is not whole yet
            return super().parse_args(ctx, args)
        translated, notes = translate(args)
        for note in notes:
            typer.echo(f"triptych: {note}", err=True)
        rest, ctx.obj = split_service_args(translated)
        return super().parse_args(ctx, rest)


app = typer.Typer(cls=_Group, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
app.add_typer(bench_app)
app.add_typer(chat_app)
app.add_typer(models_app)
app.add_typer(keys_app, name="keys")
app.add_typer(single_app)
_LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
_LogFormat = Literal["text", "json"]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def triptych(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Multimodal LLM serving as a suite of gRPC services."""


@app.command(cls=_ServeCommand, epilog=help_text())
def serve(
    ctx: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]MODEL",
            help=f"A directory, a GGUF file, a built-in name or a hub id (org/name).  [default: {DEFAULT_MODEL}]",
            autocompletion=complete_model,
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address of the gateway.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the gateway.  [default: 8000]")] = None,
    grpc_port: Annotated[int | None, typer.Option(min=0, max=65535, help="gRPC port of the gateway.  [default: 50051]")] = None,
    frontend_port: Annotated[int | None, typer.Option(min=0, max=65535, help="gRPC port.  [default: 50054]")] = None,
    encoder_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="gRPC port, where the model takes more than text.  [default: 50052]")
    ] = None,
    engine_port: Annotated[int | None, typer.Option(min=0, max=65535, help="gRPC port.  [default: 50053]")] = None,
    engines: Annotated[
        list[str] | None, typer.Option(help="Engines of each model, or NAME=NUMBER; each has the whole model.  [default: 1]")
    ] = None,
    prefill_engines: Annotated[
        list[str] | None,
        typer.Option(
            help="So many of the engines compute long prompts, so that these do not slow down what the others decode; or "
            "NAME=NUMBER.  [default: 0]"
        ),
    ] = None,
    encoders: Annotated[int, typer.Option(min=1, max=16, help="Encoders of each model that takes more than text.")] = 1,
    frontends: Annotated[int, typer.Option(min=1, max=16, help="Frontends of each model.")] = 1,
    served_model_name: Annotated[str | None, typer.Option(help="Name that clients use, of a single model.")] = None,
    max_model_len: Annotated[list[str] | None, typer.Option(help="Longest sequence, in tokens, or NAME=TOKENS.")] = None,
    quantization: Annotated[
        list[str] | None,
        typer.Option(
            help="int8: faster on CPUs, a little less exact; int4: the smallest, for large models; or NAME=int8.  [default: none]"
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help="embed: vectors, also of a model that generates; or NAME=embed.  [default: auto, by the model's files]"),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Memory for all models together, as 16G. Models that do not fit take turns.  [default: what is free]"),
    ] = None,
    log_level: Annotated[_LogLevel | None, typer.Option(help="Least severe level to log.  [default: INFO]")] = None,
    log_format: Annotated[_LogFormat | None, typer.Option(help="text for people, json for collectors.  [default: text]")] = None,
    certs: Annotated[
        Path | None,
        typer.Option(
            help="Mutual TLS between the services, with the certificates that `triptych certs` wrote to this directory.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    otlp_traces_endpoint: Annotated[
        str | None, typer.Option(help="URL of a collector of traces (OTLP over gRPC), e.g. http://localhost:4317.")
    ] = None,
    ready_fd: Annotated[
        int | None, typer.Option(min=0, help="Write the addresses to this file descriptor, as a line of JSON, when all is ready.")
    ] = None,
    parent_pid: Annotated[int | None, typer.Option(min=1, help="Stop when the parent process, which has this id, ends.")] = None,
) -> None:
    """Start all services of one or more models on this machine and keep them running.

    With several models, as in `triptych serve smollm2-135m-instruct embed=all-minilm-l6-v2`, requests name the one they mean.
    Any setting of one service can be given with its name: --engine.max-num-seqs 64, --gateway.no-access-log. `triptych engine
    --help` lists the engine's, and so on. A port of 0 takes a free one.
    """
    from triptych_cli.serve import serve as run
    from triptych_cli.stack.options import ServeOptions, options_of_models

    common = ServeOptions(
        model="",
        host=host,
        port=port,
        grpc_port=grpc_port,
        frontend_port=frontend_port,
        encoder_port=encoder_port,
        engine_port=engine_port,
        encoders=encoders,
        frontends=frontends,
        served_model_name=served_model_name,
        log_level=log_level,
        log_format=log_format,
        certs=certs,
        otlp_traces_endpoint=otlp_traces_endpoint,
        ready_fd=ready_fd,
        parent_pid=parent_pid,
    )
    by_model = {
        "engines": engines,
        "prefill_engines": prefill_engines,
        "max_model_len": max_model_len,
        "quantization": quantization,
        "task": task,
    }
    run(options_of_models(models or [DEFAULT_MODEL], common, by_model), ctx.obj, memory)


@app.command()
def batch(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A file in OpenAI's batch format, one request per line.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File of the answers. An interrupted run is continued.")],
    model: Annotated[str, typer.Option(help="Model to start, unless --url is given.")] = DEFAULT_MODEL,
    url: Annotated[str | None, typer.Option(help="Gateway that runs already, as http://127.0.0.1:8000.")] = None,
    max_in_flight: Annotated[int, typer.Option(min=1, max=4096, help="Requests at the same time.")] = 256,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the gateway's key.  [default: $TRIPTYCH_API_KEY]", dir_okay=False)
    ] = None,
) -> None:
    """Answer the requests of a file. The answers stand in the order in which they came; custom_id tells whose they are.

    Start an interrupted batch again with the same command: it goes on where it stopped. Exits with 1 if requests were answered with
    an error, which their lines tell.
    """
    from triptych_cli.batch.command import batch as run

    run(source, output, model=model, url=url, max_in_flight=max_in_flight, api_key_file=api_key_file)


@app.command()
def certs(
    directory: Annotated[Path, typer.Argument(help="Where to write them.", file_okay=False)],
    days: Annotated[int, typer.Option(min=1, max=825, help="How long they are valid.")] = 365,
    name: Annotated[
        list[str] | None, typer.Option(help="Further host name or IP address of the HTTPS certificate. May be repeated.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace certificates that are there. The authority stays.")] = False,
) -> None:
    """Make certificates for development: an authority, and a directory for each role and for HTTPS.

    `triptych serve --certs DIRECTORY` uses them. Services that run use replaced certificates without a restart.
    """
    from triptych_cli.certs import certs as run

    for folder in run(directory, days=days, names=name or (), force=force):
        typer.echo(folder)


@app.command()
def doctor() -> None:
    """Say what of this machine would stop Triptych or slow it down, and why. Exits with 1 if something would stop it."""
    from triptych_cli.doctor import doctor as run

    raise typer.Exit(0 if run() else 1)


@app.command()
def ps(
    url: Annotated[str, typer.Option(help="Gateway, as http://127.0.0.1:8000.")] = "http://127.0.0.1:8000",
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the gateway's key.  [default: $TRIPTYCH_API_KEY]", dir_okay=False)
    ] = None,
) -> None:
    """List the models of a `triptych serve`: which are awake, what they take, what they do."""
    from triptych_cli.top.command import ps as run

    run(url, api_key_file=api_key_file)


@app.command()
def top(
    url: Annotated[str, typer.Option(help="Gateway, as http://127.0.0.1:8000.")] = "http://127.0.0.1:8000",
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the gateway's key.  [default: $TRIPTYCH_API_KEY]", dir_okay=False)
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the tables once and exit, for pipes.")] = False,
) -> None:
    """Watch a running suite: rates, latencies, queues and caches, per service. Ctrl-C ends it."""
    from triptych_cli.top.command import top as run

    run(url, api_key_file=api_key_file, once=once)
