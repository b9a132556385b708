"""Runs a batch: from the input, through a window of requests in flight, to the journal."""

from __future__ import annotations

import contextlib
import functools
import json
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from rich.console import Console
from triptych.errors import StartupError
from triptych.local import LocalServer
from triptych.offline.arguments import THROUGHPUT
from triptych.offline.calls.loop import Job, LoopThread, Window
from triptych_common.batch.journal import Journal, JournalError, UnusableFileError, output_line
from triptych_common.batch.lines import Line

from triptych_cli.batch.lines import Input, check_input, read_lines
from triptych_cli.batch.post import Answer, Client
from triptych_cli.batch.progress import BatchProgress
from triptych_cli.errors import CommandError

#: Most bytes of requests in flight. What a gateway takes at once is four times as much.
_MAX_BYTES_IN_FLIGHT = 128 << 20


def run_batch(
    source: Path, output: Path, *, model: str, url: str | None, max_in_flight: int, api_key: str | None, console: Console
) -> None:
    """Answer all requests of a file that the output does not have yet.

    Args:
        model: of services that are started for the batch, unless `url` names a gateway that runs.

    Raises:
        CommandError: nothing was run, the run cannot go on, it was interrupted, or requests failed.
    """
    if url is not None:
        _check_url(url)
    wanted = check_input(source)
    with contextlib.closing(_opened(output)) as journal:
        if foreign := next((custom_id for custom_id in journal.done if custom_id not in wanted.custom_ids), None):
            raise CommandError(f"{output} has an answer to {foreign!r}, which is not in {source}; choose another output file")
        if len(journal.done) < len(wanted.custom_ids):
            with _terminable(journal, len(wanted.custom_ids)), _gateway(model, url, console) as (address, check):
                client = Client(address, api_key, check, lambda text: console.print(text, soft_wrap=True))
                _answer_all(source, wanted, journal, client, max_in_flight, console)
    num_failed = sum(status >= 400 for status in journal.done.values())
    console.print(f"{len(journal.done)} requests are answered in {output}, {num_failed} of them with an error", soft_wrap=True)
    if num_failed:
        raise CommandError(f"{num_failed} requests failed; their lines have a status_code of 400 or more")


def _opened(output: Path) -> Journal:
    """The journal of a run. Raises CommandError."""
    try:
        return Journal(output)
    except JournalError as error:
        raise CommandError(str(error), exit_code=2 if isinstance(error, UnusableFileError) else 1) from error


def _answer_all(source: Path, wanted: Input, journal: Journal, client: Client, max_in_flight: int, console: Console) -> None:
    loop = LoopThread()
    try:
        check_models(wanted.models, loop.run(client.get("/v1/models")))
        lines: list[Line] = []
        jobs = _jobs(source, frozenset(journal.done), lines, client)
        with (
            BatchProgress(console, len(wanted.custom_ids), len(journal.done)) as progress,
            contextlib.closing(Window(max_in_flight, _MAX_BYTES_IN_FLIGHT).run(loop, jobs)) as ended,
        ):
            for index, task in ended:
                answer, custom_id = task.result(), lines[index].custom_id
                journal.write(custom_id, answer.status, output_line(custom_id, answer.status, answer.request_id, answer.body))
                progress.add(answer.num_tokens("prompt"), answer.num_tokens("completion"))
        console.print(progress.speed(), soft_wrap=True)
    except JournalError as error:
        raise CommandError(f"{error}; start the same command again to go on") from error
    finally:
        loop.close(client.close)


def _jobs(source: Path, done: frozenset[str], lines: list[Line], client: Client) -> Iterator[Job[Answer]]:
    """A job for each request that is not done. Its line is appended to `lines`."""
    for line in read_lines(source):
        if line.custom_id not in done:
            body = json.dumps(line.body).encode()
            # Only the window holds bodies.
            lines.append(Line(line.number, line.custom_id, line.url, {}))
            yield Job(functools.partial(client.post, line.url, body), len(body))


def check_models(wanted: Mapping[str, int], answer: Answer) -> None:
    """Refuse a model that is not served before each of its requests is answered with an error.

    Args:
        wanted: model -> number of the first line that names it.
        answer: of the gateway to GET /v1/models.

    Raises:
        CommandError: a model is not among those of the answer, or the answer is none.
    """
    if answer.status != 200:
        raise CommandError(f"GET /v1/models is answered with status {answer.status}: {json.dumps(answer.body)}")
    try:
        served = [entry["id"] for entry in answer.body["data"]]
    except (TypeError, KeyError) as error:
        raise CommandError("GET /v1/models is answered without a list of models; --url must be that of a gateway") from error
    for model, number in wanted.items():
        if model not in served:
            raise CommandError(f"line {number}: model {model!r} is not served; served are: {', '.join(served)}")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise CommandError(f"--url must be like http://127.0.0.1:8000; given: {url!r}", exit_code=2)


@contextlib.contextmanager
def _gateway(model: str, url: str | None, console: Console) -> Iterator[tuple[str, Callable[[], None]]]:
    """URL of a gateway, and a check that raises CommandError when it will not come back."""
    if url is not None:
        yield url.rstrip("/").removesuffix("/v1"), lambda: None
        return
    try:
        with console.status(f"starting {model}"):
            server = LocalServer(model, engine=THROUGHPUT)
    except StartupError as error:
        raise CommandError(str(error)) from error

    def check() -> None:
        try:
            server.check()
        except StartupError as error:
            raise CommandError(str(error)) from error

    with server:
        yield server.addresses.gateway, check


@contextlib.contextmanager
def _terminable(journal: Journal, num_wanted: int) -> Iterator[None]:
    """SIGTERM and SIGHUP end the run in order, as Ctrl-C does. Raises CommandError then."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM, signal.SIGINT]
    # Under nohup a batch outlives its terminal.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    except KeyboardInterrupt as error:
        again = "start the same command again to go on"
        raise CommandError(f"interrupted with {len(journal.done)} of {num_wanted} requests done; {again}", exit_code=130) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
