"""The loop of `triptych top`."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live

from triptych_cli.api_key import read_api_key
from triptych_cli.errors import CommandError
from triptych_cli.top.figures import History
from triptych_cli.top.reading import GatewayAwayError, GatewayReader
from triptych_cli.top.screen import away, models, screen

_INTERVAL_S = 1.0
#: Rates and quantiles are over this time. Those of a single second would jump.
_WINDOW_S = 10.0


def top(url: str, *, api_key_file: Path | None, once: bool, console: Console | None = None) -> None:
    """Show a gateway and the services behind it, until Ctrl-C.

    Args:
        once: print the tables once, with the rates of one second. Also without it if the output is no terminal.
        console: where to write; by default standard output.

    Raises:
        CommandError: the gateway wants a key; with `once`, also if it does not answer.
    """
    reader, console = _reader(url, api_key_file), console or Console(highlight=False)
    if once or not console.is_terminal:
        _print_once(reader, console)
        return
    with contextlib.suppress(KeyboardInterrupt):
        _follow(reader, console)


def ps(url: str, *, api_key_file: Path | None, console: Console | None = None) -> None:
    """Print the models of a `triptych serve`. Raises CommandError if its gateway does not answer."""
    reader, console = _reader(url, api_key_file), console or Console(highlight=False)
    try:
        of_machine = reader.read_models()
    except GatewayAwayError as error:
        raise CommandError(_nobody(reader.url, error)) from error
    if of_machine is None:
        raise CommandError(f"the gateway at {reader.url} has no model manager; that of `triptych serve` has one")
    console.print(models(of_machine))


def _reader(url: str, api_key_file: Path | None) -> GatewayReader:
    if not url.startswith(("http://", "https://")):
        raise CommandError(f"--url must begin with http:// or https://; given: {url}", exit_code=2)
    return GatewayReader(url, read_api_key(api_key_file))


def _nobody(url: str, reason: GatewayAwayError) -> str:
    return f"no gateway answers at {url}: {reason}; start one with `triptych serve`, or give --url"


def _print_once(reader: GatewayReader, console: Console) -> None:
    history = History(_WINDOW_S)
    try:
        history.add(reader.read())
        time.sleep(_INTERVAL_S)
        figures = history.add(reader.read())
    except GatewayAwayError as error:
        raise CommandError(_nobody(reader.url, error)) from error
    console.print(screen(reader.url, figures))


def _follow(reader: GatewayReader, console: Console) -> None:
    history = History(_WINDOW_S)
    # The alternate screen: afterwards the terminal is as it was before.
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                live.update(screen(reader.url, history.add(reader.read())), refresh=True)
            except GatewayAwayError as error:
                live.update(away(reader.url, str(error)), refresh=True)
            time.sleep(_INTERVAL_S)
