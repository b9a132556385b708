"""The commands `triptych keys create`, `list` and `revoke`. Typer reads their options from the functions' parameters."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from triptych_cli.errors import CommandError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="API keys of the gateway: a file with their hashes, which `triptych gateway --api-keys-file` reads again when it changes.",
)
_File = Annotated[
    Path, typer.Option(envvar="TRIPTYCH_GATEWAY_API_KEYS_FILE", help="The file of keys.", dir_okay=False, show_envvar=True)
]
_AGE = re.compile(r"(\d{1,6})([dhm])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


@app.command()
def create(
    file: _File,
    name: Annotated[str, typer.Option(help="A note for people, such as whose key it is.")] = "",
    tenant: Annotated[
        str | None,
        typer.Option(help="Keys of one tenant share caches and stored responses.  [default: a tenant of its own]"),
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="A model that it may use; repeat it for more.  [default: all]")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Limit of its requests.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Limit of its tokens, of prompts and answers.")] = None,
    max_concurrent_requests: Annotated[int | None, typer.Option(min=1, help="Requests at the same time, per gateway.")] = None,
    priority: Annotated[int, typer.Option(help="The earliest priority that its requests may have; lower runs first.")] = 0,
    expires: Annotated[str | None, typer.Option(help="When it ends: 90d, 12h, or a date as 2031-12-31.  [default: never]")] = None,
    operator: Annotated[bool, typer.Option("--operator", help="Let it use /metrics and /load, too.")] = False,
) -> None:
    """Make a key, and print it. It is shown once: the file has only its hash."""
    from pydantic import ValidationError
    from triptych_gateway.access.keys import ApiKey, KeyFile, new_key

    from triptych_cli.keys.file import load, locked, replace

    now = datetime.now(UTC).replace(microsecond=0)
    key_id, text, hashed = new_key()
    try:
        key = ApiKey(
            id=key_id,
            hash=hashed,
            name=name,
            tenant=tenant,
            models=model or None,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            max_concurrent_requests=max_concurrent_requests,
            priority=priority,
            operator=operator,
            created=now,
            expires=_time(expires, now),
        )
    except ValidationError as error:
        options = ((str(one["loc"][0]).replace("models", "model").replace("_", "-"), one["msg"]) for one in error.errors())
        told = "; ".join(f"--{option}: {message}" for option, message in options)
        raise CommandError(told, exit_code=2) from error
    with locked(file) as target:
        replace(target, KeyFile(version=1, keys=[*load(target, may_be_missing=True).keys, key]))
    typer.echo(f"key {key_id} is in {file}; this is the only time that it is shown:", err=True)
    typer.echo(text)


@app.command("list")
def show(file: _File) -> None:
    """List the keys, without their secrets."""
    from triptych_cli.keys.file import load

    rows: list[list[str]] = [
        ["ID", "STATE", "TENANT", "REQUESTS/MIN", "TOKENS/MIN", "AT ONCE", "PRIORITY", "EXPIRES", "MODELS", "NAME"]
    ]
    for key in load(file).keys:
        state = key.refusal() or ("operator" if key.operator else "valid")
        limits = (key.requests_per_minute, key.tokens_per_minute, key.max_concurrent_requests, key.priority)
        expires = f"{key.expires:%Y-%m-%dT%H:%M}" if key.expires else "-"
        name = key.name if key.name.isprintable() else repr(key.name)
        cells = ["-" if one is None else str(one) for one in limits]
        rows.append([key.id, state, key.tenant or key.id, *cells, expires, ",".join(key.models or ["all"]), name])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key: the part between sk-triptych- and the next -.")],
    file: _File,
) -> None:
    """Revoke a key. Running gateways refuse it within two seconds. Its entry stays in the file, for the audit log."""
    from triptych_gateway.access.keys import KeyFile

    from triptych_cli.keys.file import load, locked, replace

    with locked(file) as target:
        keys = load(target).keys
        found = next((key for key in keys if key.id == key_id), None)
        if found is None:
            # It may be a whole key by mistake, which must not be shown.
            raise CommandError(f"{file} has no key with this id; `triptych keys list` shows the ids")
        if found.revoked is not None:
            raise CommandError(f"key {key_id} was revoked at {found.revoked:%Y-%m-%d %H:%M} UTC")
        revoked = found.model_copy(update={"revoked": datetime.now(UTC).replace(microsecond=0)})
        replace(target, KeyFile(version=1, keys=[revoked if key is found else key for key in keys]))
    typer.echo(f"key {key_id} is revoked", err=True)


def _time(text: str | None, now: datetime) -> datetime | None:
    if text is None:
        return None
    age = _AGE.fullmatch(text)
    try:
        time = now + timedelta(**{_UNITS[age[2]]: int(age[1])}) if age else datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        message = f"--expires: must be a time from now, as 90d, 12h or 30m, or a date, as 2031-12-31; given: {text!r}"
        raise CommandError(message, exit_code=2) from error
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    if time <= now:
        raise CommandError(f"--expires: must be in the future; given: {text!r}", exit_code=2)
    return time
