"""Terminal output while services run: their lines with a coloured prefix, what is not ready yet, and how they ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.text import Text

_COLOURS = ("cyan", "magenta", "green", "blue")


class TerminalReporter:
    """Writes to a console. On a terminal it also shows a spinner with the services that are not ready yet.

    Args:
        services: in start order.
        prefix_lines: put the service's name before each of its lines; False if the lines already name it.
        on_all_ready: called once when all services are ready, with the elapsed time in seconds.
    """

    def __init__(
        self, console: Console, services: Sequence[str], prefix_lines: bool, on_all_ready: Callable[[float], None]
    ) -> None:
        self._console = console
        self._prefix_lines = prefix_lines
        self._on_all_ready = on_all_ready
        self._waiting = list(services)
        self._width = max(map(len, services))
        self._prefixes: dict[str, Text] = {}
        for name in services:
            self._prefix(name)
        self._status = console.status("") if console.is_terminal else None

    def __enter__(self) -> TerminalReporter:
        if self._status:
            self._show_waiting()
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._status:
            self._status.stop()

    def line(self, service: str, text: str) -> None:
        # A service may colour its own lines.
        body = Text.from_ansi(text)
        self._console.print(self._prefix(service) + body if self._prefix_lines else body, soft_wrap=True)

    def ready(self, service: str, elapsed_s: float) -> None:
        with contextlib.suppress(ValueError):
            self._waiting.remove(service)
        self._say(f"[green]{service} is ready[/] after {elapsed_s:.1f} s")
        self._show_waiting()

    def all_ready(self, elapsed_s: float) -> None:
        if self._status:
            self._status.stop()
        self._on_all_ready(elapsed_s)

    def died(self, service: str, how: str, last_lines: Sequence[str]) -> None:
        self._say(f"[bold red]{service} died ({how})[/]; its last lines:")
        self.show_last_lines(last_lines)
        self._say(f"starting {service} again")

    def left_out(self, service: str, how: str, last_lines: Sequence[str]) -> None:
        with contextlib.suppress(ValueError):
            self._waiting.remove(service)
        self._say(f"[bold red]{service} ended before it was ready ({how})[/]; the others go on without it. Its last lines:")
        self.show_last_lines(last_lines)
        self._show_waiting()

    def show_last_lines(self, last_lines: Sequence[str]) -> None:
        """Show the last lines of a service's output, indented."""
        for text in last_lines or ["(none)"]:
            self._console.print(Text("    ") + Text.from_ansi(text), soft_wrap=True)

    def stopping(self, service: str) -> None:
        if self._status:
            self._status.stop()
        self._say(f"stopping {service}")

    def killed(self, service: str, grace_s: float) -> None:
        self._say(f"[bold red]{service} did not stop within {grace_s:.0f} s and was killed[/]")

    def failed(self, why: str) -> None:
        """Report why everything stops."""
        self._say(f"[bold red]{escape(why)}[/]")

    def _prefix(self, service: str) -> Text:
        """What stands before the lines of a service, which may have been added later."""
        style = _COLOURS[len(self._prefixes) % len(_COLOURS)]
        return self._prefixes.setdefault(service, Text(f"{service:<{self._width}} │ ", style=style))

    def _say(self, markup: str) -> None:
        self._console.print(f"[bold]triptych[/] │ {markup}", highlight=False, soft_wrap=True)

    def _show_waiting(self) -> None:
        if self._status:
            self._status.update(f"waiting for {', '.join(self._waiting)}")
