"""The command line of a profile."""

from __future__ import annotations

import dataclasses
import http.client
import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from triptych.installation import install_command
from triptych_common.host.open_files import raise_open_files_limit

from triptych_cli.api_key import read_api_key
from triptych_cli.bench.figures import LIMITS, Level
from triptych_cli.errors import CommandError
from triptych_cli.printable import printable

T = TypeVar("T", int, float)
_TIMEOUT_S = 10.0
#: What a shell says of a program that Ctrl-C ended.
_INTERRUPTED = 130


@dataclasses.dataclass(frozen=True)
class BenchOptions:
    """The command's options, as they were given. Lists are separated by commas."""

    url: str
    model: str | None
    concurrency: str | None
    rate: str | None
    num_prompts: int | None
    input_len: int
    output_len: int
    completions: bool
    ignore_eos: bool
    goodput: Sequence[str]
    json_file: Path | None
    plot: Path | None
    api_key_file: Path | None
    cacert: Path | None


def bench(options: BenchOptions, console: Console | None = None) -> int:
    """Measure a server and print its figures. Returns the exit code: 1 if requests failed.

    Raises:
        CommandError: an option is wrong, or the server does not answer.
    """
    try:
        from triptych_cli.bench.profile import Plan, Profiler
        from triptych_cli.load.client import run_async
        from triptych_cli.load.requests import Target
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("triptych"):
            raise
        install = install_command("triptych-server", "gateway")
        raise CommandError(f"bench needs {error.name}, which is not installed; run: {install}") from error
    if options.concurrency is not None and options.rate is not None:
        raise CommandError("--concurrency and --rate are two kinds of load; give one of them", exit_code=2)
    plan = Plan(
        concurrency=[] if options.rate is not None else _numbers("--concurrency", options.concurrency or "1,4,16", int),
        rates=[] if options.rate is None else _numbers("--rate", options.rate, float),
        num_prompts=options.num_prompts,
        input_len=options.input_len,
        output_len=options.output_len,
        is_chat=not options.completions,
        ignore_eos=options.ignore_eos,
        limits=_limits(options.goodput),
    )
    url, key, tls = _url(options.url), read_api_key(options.api_key_file), _tls(options)
    model = options.model or _first_model(url, key, tls)
    raise_open_files_limit()
    out, err = console or Console(highlight=False), Console(stderr=True, highlight=False, markup=False)
    with err.status(printable(f"{url}, {model}")) as status:
        profiler = Profiler(Target("", url, model, key, tls), plan, lambda what: status.update(printable(what)))
        is_whole = run_async(profiler.run())
    _write(options, out, url, model, profiler.levels)
    if not is_whole:
        err.print("interrupted")
        return _INTERRUPTED
    return 1 if any(one.num_failed for one in profiler.levels) else 0


def _write(options: BenchOptions, console: Console, url: str, model: str, levels: Sequence[Level]) -> None:
    from triptych_cli.bench.plot import svg_of
    from triptych_cli.bench.table import notes_of, table_of

    if options.json_file != Path("-"):
        console.print(table_of(levels))
        for note in notes_of(levels):
            console.print(note, markup=False)
    about = dataclasses.asdict(options) | {"json_file": None, "plot": None, "api_key_file": None, "cacert": None}
    given = {name: value for name, value in about.items() if value is not None}
    result = {"date": datetime.now(UTC).isoformat(timespec="seconds"), **given, "url": url, "model": model}
    text = json.dumps(result | {"levels": [dataclasses.asdict(one) for one in levels]}, indent=2) + "\n"
    if options.json_file == Path("-"):
        sys.stdout.write(text)
    elif options.json_file is not None:
        _save(options.json_file, text)
    if options.plot is not None:
        _save(options.plot, svg_of(levels, f"{model}, {url}"))


def _save(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}") from error


def _numbers(option: str, text: str, kind: type[T]) -> list[T]:
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number <= 100_000 for number in numbers):
        raise CommandError(f"{option} is a list of positive numbers separated by commas, as 1,8,32; given: {text}", exit_code=2)
    return numbers


def _limits(given: Sequence[str]) -> dict[str, float]:
    limits = {}
    for one in given:
        name, _, value = one.partition(":")
        if name not in LIMITS or not value.replace(".", "", 1).isdecimal():
            names = ", ".join(LIMITS)
            raise CommandError(f"--goodput is NAME:MILLISECONDS with a name of {names}, as ttft:500; given: {one}", exit_code=2)
        limits[name] = float(value)
    return limits


def _url(given: str) -> str:
    url = given.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise CommandError(f"the URL must begin with http:// or https://; given: {given}", exit_code=2)
    return url


def _tls(options: BenchOptions) -> ssl.SSLContext | None:
    if not options.url.startswith("https://"):
        return None
    try:
        return ssl.create_default_context(cafile=options.cacert)
    except (OSError, ssl.SSLError) as error:
        raise CommandError(f"cannot read {options.cacert} as a certificate: {error}", exit_code=2) from error


def _first_model(url: str, key: str | None, tls: ssl.SSLContext | None) -> str:
    """The first model that the server lists. Raises CommandError."""
    request = urllib.request.Request(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"} if key else {})  # noqa: S310
    # Called directly, as the load is, without the environment's proxies.
    handlers: list[Any] = [urllib.request.ProxyHandler({}), *([urllib.request.HTTPSHandler(context=tls)] if tls else [])]
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT_S) as response:
            models = json.load(response)["data"]
        return str(models[0]["id"])
    except urllib.error.HTTPError as error:
        if error.code == 401:
            source = "give it with --api-key-file or in TRIPTYCH_API_KEY"
            raise CommandError(f"{url} answers with status 401: the key is missing or wrong; {source}") from error
        raise CommandError(f"{url}/v1/models answers with status {error.code}; name the model with --model") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise CommandError(f"no server answers at {url}: {getattr(error, 'reason', error)}") from error
    except (LookupError, TypeError) as error:
        raise CommandError(f"{url}/v1/models lists no model; name one with --model") from error
