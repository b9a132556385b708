"""The keys that a gateway accepts, and their reload when the file changes."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from triptych.errors import StartupError
from triptych_common.rpc.principal import ANONYMOUS, Principal

from triptych_gateway.access.keys import DEFAULT_ID, ApiKey, KeyFileError, id_in, key_hash, parse_key_file, read_key_file

log = logging.getLogger(__name__)
#: Time between two looks at the file, in seconds.
RELOAD_INTERVAL_S = 1.0
#: What an unknown key is compared with. No key has this hash.
_NO_HASH = secrets.token_bytes(32)

Refusal = Literal["wrong", "revoked", "expired"]


@dataclass(frozen=True, slots=True)
class Key:
    """A key as requests use it."""

    id: str
    digest: bytes = field(repr=False)
    principal: Principal = ANONYMOUS
    #: None: all.
    models: frozenset[str] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent_requests: int | None = None
    #: The earliest priority of its requests. None: the client chooses.
    priority: int | None = None
    is_operator: bool = True
    entry: ApiKey | None = None

    @classmethod
    def of(cls, entry: ApiKey) -> Self:
        """The key of an entry in a file."""
        same = ("id", "requests_per_minute", "tokens_per_minute", "max_concurrent_requests", "priority")
        return cls(
            digest=bytes.fromhex(entry.hash.removeprefix("sha256:")),
            principal=Principal(entry.tenant or entry.id),
            models=frozenset(entry.models) if entry.models is not None else None,
            is_operator=entry.operator,
            entry=entry,
            **{name: getattr(entry, name) for name in same},
        )

    def refusal(self) -> Refusal | None:
        """Why it is not accepted now; None if it is."""
        return self.entry.refusal() if self.entry is not None else None


#: Of requests to a gateway without keys, and to open routes: everything is allowed.
NO_KEY = Key("", b"")


@dataclass(frozen=True)
class KeyChange:
    """What a new version of the file changed: ids of keys."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]


class KeyRing:
    """All keys of a gateway.

    Args:
        default: the key in the setting `api_key`, which is of no tenant and has no limits.
        path: the file with the other keys.

    Raises:
        StartupError: the file cannot be read, or is wrong.
    """

    def __init__(self, default: str | None, path: Path | None) -> None:
        self._default = Key(DEFAULT_ID, key_hash(default.encode())) if default is not None else None
        self._path = path
        self._set_keys({})
        #: Whether the keys are those of the file as it is now.
        self.is_current = True
        #: Hash of the file that the keys are from.
        self._version = b""
        if path is not None:
            try:
                content = read_key_file(path)
                self._version = key_hash(content)
                self._set_keys(_by_id(parse_key_file(content).keys))
            except (OSError, KeyFileError) as error:
                raise StartupError(f"cannot use the API keys in {path}: {_reason(error)}; see --api-keys-file") from error

    def find(self, text: bytes) -> Key | Refusal:
        """The key with this text, or why there is none.

        It takes the same time whether the id is unknown or the secret is wrong: one hash, and two comparisons in constant time.
        """
        digest = key_hash(text)
        named = self._keys.get(id_in(text) or "")
        is_named = hmac.compare_digest(digest, named.digest if named is not None else _NO_HASH)
        is_default = hmac.compare_digest(digest, self._default.digest if self._default is not None else _NO_HASH)
        found = named if is_named else self._default if is_default else None
        return "wrong" if found is None else found.refusal() or found

    def renewed(self, key: Key) -> Key | Refusal:
        """The key as it is now, for a connection that was opened with it, or why it is no longer accepted."""
        now = self.get(key.id)
        return now if not isinstance(now, Key) or now.digest == key.digest else "wrong"

    def get(self, key_id: str) -> Key | Refusal:
        """The key with this id as it is now, or why it is not accepted."""
        now = self._default if key_id == DEFAULT_ID else self._keys.get(key_id)
        return "wrong" if now is None else now.refusal() or now

    def _set_keys(self, keys: dict[str, Key]) -> None:
        self._keys = keys
        all_keys = (*keys.values(), *([self._default] if self._default else []))
        #: How many tenants have keys.
        self.num_tenants = len({key.principal.tenant for key in all_keys})

    async def watch(self, on_change: Callable[[KeyChange], None], on_error: Callable[[], None]) -> None:
        """Read the file again whenever it changes, until cancelled. A file that is wrong changes nothing.

        A Secret of Kubernetes changes by a symbolic link. The content is compared, because no time of a file tells as
        much.

        Args:
            on_error: called once for each wrong version of the file.
        """
        failure = ""
        while self._path is not None:
            await asyncio.sleep(RELOAD_INTERVAL_S)
            try:
                content = await asyncio.to_thread(read_key_file, self._path)
                if key_hash(content) == self._version:
                    failure, self.is_current = "", True
                    continue
                keys = _by_id((await asyncio.to_thread(parse_key_file, content)).keys)
            except (OSError, KeyFileError) as error:
                self.is_current = False
                if failure != (failure := _reason(error)):
                    log.error("the API keys in %s cannot be used, so the keys from before stay: %s", self._path, failure)
                    on_error()
                continue
            except Exception:
                # Without the watch, no key could be revoked.
                self.is_current = False
                log.exception("unexpected error while the API keys were read")
                continue
            failure, self.is_current, self._version = "", True, key_hash(content)
            change = _difference(self._keys, keys)
            self._set_keys(keys)
            log.info("%d API keys in %s: %s", len(keys), self._path, _told(change))
            on_change(change)


def _by_id(entries: Iterable[ApiKey]) -> dict[str, Key]:
    return {entry.id: Key.of(entry) for entry in entries}


def _reason(error: OSError | KeyFileError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _difference(old: dict[str, Key], new: dict[str, Key]) -> KeyChange:
    both = old.keys() & new.keys()
    return KeyChange(
        tuple(sorted(new.keys() - both)),
        tuple(sorted(old.keys() - both)),
        tuple(sorted(one for one in both if old[one] != new[one])),
    )


def _told(change: KeyChange) -> str:
    groups = (("new", change.added), ("gone", change.removed), ("changed", change.changed))
    return "; ".join(f"{name}: {', '.join(ids)}" for name, ids in groups if ids) or "nothing new"
