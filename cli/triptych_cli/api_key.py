"""The key with which commands call a gateway."""

from __future__ import annotations

import os
from pathlib import Path

from triptych_cli.errors import CommandError

#: The clients' variable, and the one of a gateway with one key, which may run on the same machine.
_VARIABLES = ("TRIPTYCH_API_KEY", "TRIPTYCH_GATEWAY_API_KEY")


def read_api_key(file: Path | None) -> str | None:
    """The key in a file or, without a file, in the environment; None if there is none. Raises CommandError."""
    try:
        key = file.read_text(encoding="utf-8").strip() if file else next(filter(None, map(os.environ.get, _VARIABLES)), None)
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}", exit_code=2) from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{file} holds no key: it is not text", exit_code=2) from error
    if key and not key.isprintable():
        raise CommandError(f"{file or _VARIABLES[0]} holds no key: a key is one line of text", exit_code=2)
    return key or None
