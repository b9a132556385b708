"""Commands that run one service alone, in this process."""

from __future__ import annotations

import os
import runpy
import sys
from typing import Annotated, Literal

import typer
from triptych.installation import install_command

from triptych_cli.errors import CommandError
from triptych_cli.stack.service_flags import has_flag

app = typer.Typer()
#: All arguments after the command belong to the service, including --help.
_PASS_ALL = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings=_PASS_ALL)
def engine(ctx: typer.Context) -> None:
    """Run only the engine, in this process. Its settings are its flags."""
    _run_service("engine", ctx.args)


@app.command(context_settings=_PASS_ALL)
def encoder(ctx: typer.Context) -> None:
    """Run only the encoder, in this process. Its settings are its flags."""
    _run_service("encoder", ctx.args)


@app.command(context_settings=_PASS_ALL)
def frontend(ctx: typer.Context) -> None:
    """Run only the frontend, in this process. Its settings are its flags."""
    _run_service("frontend", ctx.args)


@app.command(context_settings=_PASS_ALL | {"help_option_names": ["--help"]})
def worker(
    ctx: typer.Context,
    role: Annotated[Literal["engine", "encoder", "frontend"], typer.Argument(help="Which service to run.")],
    registry: Annotated[
        str | None,
        typer.Option(
            help="URL of a Valkey or Redis server that the suite shares, e.g. valkey://host:6379. If it has a password, set "
            "TRIPTYCH_ENGINE_REGISTRY (or _ENCODER_, _FRONTEND_) instead."
        ),
    ] = None,
) -> None:
    """Run one service that joins a suite on other machines, which knows the registry. All other flags are the service's own.

    It listens on all addresses unless --host says otherwise, so it wants --tls-dir, or --insecure-grpc in a private network. Others
    reach it under this machine's name, or --advertised-address host:port. It finds the services that it needs in the registry. The
    suite has the same URL among its addresses: --engine-addresses, --encoder-addresses, --frontend-addresses.
    """
    registry = registry or os.environ.get(f"TRIPTYCH_{role.upper()}_REGISTRY")
    if registry is None:
        raise CommandError(f"--registry, or TRIPTYCH_{role.upper()}_REGISTRY, is needed", exit_code=2)
    found = {"engine": ["--encoder-addresses"], "frontend": ["--engine-addresses", "--encoder-addresses"]}
    defaults = {"--host": "0.0.0.0", **dict.fromkeys(found.get(role, ()), registry)}  # noqa: S104 - what it is for
    args = [part for flag, value in defaults.items() if not has_flag(ctx.args, flag) for part in (flag, value)]
    _run_service(role, [*ctx.args, *args, "--registry", registry])


@app.command(context_settings=_PASS_ALL)
def gateway(ctx: typer.Context) -> None:
    """Run only the gateway, in this process. Its settings are its flags."""
    _run_service("gateway", ctx.args)


@app.command(context_settings=_PASS_ALL)
def mock(ctx: typer.Context) -> None:
    """Run a mock of frontend, encoder and engine with scripted answers, for tests of clients. Its settings are its flags."""
    _run_service("mock", ctx.args)


def _run_service(name: str, args: list[str]) -> None:
    sys.argv = [f"triptych {name}", *args]
    try:
        runpy.run_module(f"triptych_{name}", run_name="__main__")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("triptych_"):
            raise
        raise CommandError(
            f"the {name} needs {error.name}, which is not installed; run: {install_command('triptych-server', name)}"
        ) from error
