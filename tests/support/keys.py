"""Files of API keys for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
from triptych_gateway.access.keys import new_key

NOW = datetime.now(UTC).replace(microsecond=0)
PAST = (NOW - timedelta(days=1)).isoformat()


class KeyStore:
    """A file of keys, and their texts.

    Args:
        path: the file. It is written when a key is added.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Name -> text.
        self.texts: dict[str, str] = {}
        self._entries: dict[str, dict[str, Any]] = {}
        self.write()

    def add(self, name: str, **fields: Any) -> str:
        """Make a key, and write the file. Returns the key's text."""
        key_id, text, hashed = new_key()
        self.texts[name] = text
        self._entries[name] = {"id": key_id, "hash": hashed, "name": name, "created": PAST, **fields}
        self.write()
        return text

    def change(self, name: str, **fields: Any) -> None:
        """Change fields of a key, and write the file."""
        self._entries[name] |= fields
        self.write()

    def remove(self, name: str) -> None:
        """Take a key out of the file."""
        del self._entries[name]
        self.write()

    def id(self, name: str) -> str:
        """The public id of a key."""
        return str(self._entries[name]["id"])

    def headers(self, name: str) -> dict[str, str]:
        """The headers of a request with this key."""
        return {"authorization": f"Bearer {self.texts[name]}"}

    def write(self) -> None:
        """Replace the file as `triptych keys` does."""
        new = self.path.with_suffix(".new")
        new.write_bytes(orjson.dumps({"version": 1, "keys": list(self._entries.values())}))
        new.replace(self.path)


def secret_of(text: str) -> str:
    """The part of a key that nobody may see."""
    return text.split("-", 3)[3]
