"""Reads turns and shows answers. Reasoning is dim, on terminals only; what else a person should know goes to standard error."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, cast

from triptych.errors import TriptychError
from triptych.requests.media import Kind

from triptych_cli.chat.conversation import PARAMETERS, Attachment, Conversation
from triptych_cli.errors import CommandError
from triptych_cli.printable import printable

HELP = """\
  /image PATH, /audio PATH, /video PATH   send a file with the next turn
  /set NAME VALUE                         system, {parameters}
  /set                                    show what is set
  /save FILE, /load FILE                  keep the conversation, or go on with one
  /reset                                  start anew; the system message stays
  \"\"\"                                     begins and ends a turn of several lines
  Ctrl-C stops an answer, Ctrl-D ends
"""
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_KINDS = ("image", "audio", "video")
_FENCE = '"""'


class Terminal:
    """A conversation between a person and a model.

    Args:
        out: where answers go. If it is a terminal, reasoning and statistics are shown, too.
    """

    def __init__(self, conversation: Conversation, out: TextIO) -> None:
        self._conversation, self._out = conversation, out
        self._is_terminal = out.isatty()
        self._attachments: list[Attachment] = []

    def talk(self) -> None:
        """Read turns and commands from standard input until it ends."""
        import readline  # noqa: F401 - gives input() its line editing and history

        while True:
            try:
                text = self._read()
            except EOFError:
                print(file=self._out)
                return
            except KeyboardInterrupt:
                print(file=self._out)
                continue
            try:
                if text.startswith("/"):
                    self.command(text)
                elif text:
                    self.answer(text)
            except CommandError as error:
                print(f"error: {error}", file=sys.stderr)

    def _read(self) -> str:
        line = input("> ").strip()
        if not line.startswith(_FENCE):
            return line
        lines = [line.removeprefix(_FENCE)]
        while not lines[-1].endswith(_FENCE) or (len(lines) == 1 and not lines[0]):
            lines.append(input(". ").rstrip())
        return "\n".join(lines).removesuffix(_FENCE).strip()

    def command(self, line: str) -> None:
        """Do what a line that begins with a slash says. Raises CommandError if it cannot be done."""
        name, _, value = line[1:].partition(" ")
        value = value.strip()
        if name in _KINDS:
            self._attachments.append(attachment(name, value))
        elif name == "set" and value:
            self._conversation.set(*_pair(value))
        elif name == "set":
            values = {"system": self._conversation.system, **self._conversation.parameters}
            self._say("\n".join(f"{key} {value}" for key, value in values.items() if value is not None) or "nothing is set")
        elif name in ("save", "load") and value:
            path = Path(value).expanduser()
            (self._conversation.save if name == "save" else self._conversation.load)(path)
            self._say(f"{path}: {len(self._conversation.turns)} messages")
        elif name == "reset":
            self._conversation.reset()
            self._attachments.clear()
        elif name == "help":
            self._say(HELP.format(parameters=", ".join(PARAMETERS)).rstrip())
        else:
            raise CommandError(f"/{name} needs a file" if name in ("save", "load") else f"unknown command /{name}; /help lists all")

    def answer(self, text: str, attachments: Sequence[Attachment] = ()) -> bool:
        """Show one answer as it arrives. Returns False after an error, which is shown.

        Args:
            attachments: files that go with the text, beside those that commands named.
        """
        interrupts: list[int] = []

        def stop(number: int, frame: object) -> None:
            interrupts.append(number)
            self._conversation.stop()

        # No KeyboardInterrupt: it could be raised at any point, even inside gRPC.
        is_main = threading.current_thread() is threading.main_thread()  # only this thread may set signal handlers
        before = signal.signal(signal.SIGINT, stop) if is_main else None
        files, self._attachments = (*self._attachments, *attachments), []
        try:
            self._show(text, files)
            if interrupts:
                self._out.write(" …")
        except BrokenPipeError:  # the reader has enough, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())
            return True
        except (TriptychError, OSError) as error:
            print(f"\nerror: {printable(str(error))}", file=sys.stderr)
            return False
        finally:
            if is_main:
                signal.signal(signal.SIGINT, before)
        print(file=self._out, flush=True)
        if self._is_terminal:
            self._say(self._statistics())
        return True

    def _show(self, text: str, attachments: tuple[Attachment, ...]) -> None:
        is_dim = False
        try:
            for kind, piece in self._conversation.ask(text, attachments):
                if kind == "reasoning" and not self._is_terminal:
                    continue
                if (kind == "reasoning") != is_dim:
                    is_dim = not is_dim
                    self._out.write(_DIM if is_dim else f"{_PLAIN}\n")
                self._out.write(printable(piece) if self._is_terminal else piece)
                self._out.flush()
        finally:
            if is_dim:
                self._out.write(_PLAIN)

    def _statistics(self) -> str:
        usage, timings = self._conversation.response.usage, self._conversation.response.timings
        is_timed = timings.decode_s > 0 and usage.completion_tokens > 1
        rate = f", {(usage.completion_tokens - 1) / timings.decode_s:.0f} tokens/s" if is_timed else ""
        return f"{usage.prompt_tokens} + {usage.completion_tokens} tokens{rate}"

    def _say(self, text: str) -> None:
        """Show what is not part of an answer."""
        print(f"{_DIM}{text}{_PLAIN}" if sys.stderr.isatty() else text, file=sys.stderr)


def attachment(kind: str, source: str) -> Attachment:
    """A file, or what is at an address. Raises CommandError if there is no such file."""
    if not source.startswith(("https:", "http:", "data:")):
        path = Path(source).expanduser()
        if not source or not path.is_file():
            raise CommandError(f"there is no file {source}" if source else f"/{kind} needs a file")
        source = str(path.resolve())
    return cast(Kind, kind), source


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition(" ")
    return name, value.strip()
