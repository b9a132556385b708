"""The command lines of `triptych chat` and `triptych run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triptych_cli.errors import CommandError
from triptych_cli.models.completion import complete_model

app = typer.Typer()
_System = Annotated[str | None, typer.Option(help="System message.")]
_Temperature = Annotated[float | None, typer.Option(help="0 is greedy.")]
_MaxTokens = Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")]
_Address = Annotated[
    str | None, typer.Option(help="host:port of the gateway's gRPC.  [default: $TRIPTYCH_ADDRESS, or 127.0.0.1:50051]")
]
_ApiKeyFile = Annotated[
    Path | None, typer.Option(help="File with the gateway's key.  [default: $TRIPTYCH_API_KEY]", dir_okay=False)
]
_Files = list[str] | None


@app.command()
def run(
    model: Annotated[
        str,
        typer.Argument(help="A directory, a GGUF file, a built-in name or a hub id (org/name).", autocompletion=complete_model),
    ],
    prompt: Annotated[str | None, typer.Argument(help="Without it, a chat begins. What comes from a pipe follows it.")] = None,
    image: Annotated[_Files, typer.Option(help="Picture that goes with the prompt: a file or an address. May be repeated.")] = None,
    audio: Annotated[_Files, typer.Option(help="Sound that goes with the prompt. May be repeated.")] = None,
    video: Annotated[_Files, typer.Option(help="Video that goes with the prompt. May be repeated.")] = None,
    system: _System = None,
    temperature: _Temperature = None,
    max_tokens: _MaxTokens = None,
    address: _Address = None,
    api_key_file: _ApiKeyFile = None,
) -> None:
    """Ask a model one thing, or chat with it. Uses a gateway that serves it; otherwise starts it, and stops it at the end."""
    from triptych_cli.chat.command import run as start
    from triptych_cli.chat.terminal import attachment

    kinds = (("image", image), ("audio", audio), ("video", video))
    attachments = [attachment(kind, source) for kind, sources in kinds for source in sources or ()]
    if attachments and prompt is None:
        raise CommandError("files go with a prompt; in a chat, /image PATH sends one", exit_code=2)
    parameters = _given(temperature=temperature, max_tokens=max_tokens)
    start(
        model,
        prompt,
        attachments=attachments,
        system=system,
        parameters=parameters,
        address=address,
        api_key_file=api_key_file,
    )


@app.command()
def chat(
    address: _Address = None,
    model: Annotated[str | None, typer.Option(help="Name of the model, where several are served.")] = None,
    system: _System = None,
    temperature: _Temperature = None,
    max_tokens: _MaxTokens = None,
    tls_dir: Annotated[
        Path | None,
        typer.Option(help="Directory with tls.crt, tls.key and ca.crt of the role client, for mutual TLS with a frontend."),
    ] = None,
    cacert: Annotated[
        Path | None, typer.Option(help="Certificate of the authority that vouches for a gateway with HTTPS.", dir_okay=False)
    ] = None,
    api_key_file: _ApiKeyFile = None,
) -> None:
    """Chat with a served model. Also reads lines from a pipe. /help lists what one can do besides."""
    from triptych_cli.chat.command import chat as start

    parameters = _given(model=model, temperature=temperature, max_tokens=max_tokens)
    start(address, system=system, parameters=parameters, tls_dir=tls_dir, cacert=cacert, api_key_file=api_key_file)


def _given(**options: object) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}
