"""Opens the store that a setting names."""

from __future__ import annotations

from triptych_gateway.stores.memory import MemoryStore
from triptych_gateway.stores.sqlite import SqliteStore
from triptych_gateway.stores.store import ResponseStore
from triptych_gateway.stores.valkey import ValkeyStore

#: What the settings may be.
SERVER_FORMS = "redis://HOST:PORT/DB, rediss:// or unix://"
FORMS = f"memory, sqlite:PATH, {SERVER_FORMS}"
_SERVERS = ("redis://", "rediss://", "unix://")


def check_target(target: str) -> str:
    """The target, if it has one of the forms. Raises ValueError."""
    if target == "memory" or target.startswith(_SERVERS) or (target.startswith("sqlite:") and len(target) > len("sqlite:")):
        return target
    raise ValueError(f"must be {FORMS}")


def check_rates_target(target: str) -> str:
    """The target of a store of rates, if it has one of the forms. Raises ValueError."""
    if target == "memory" or target.startswith(_SERVERS):
        return target
    raise ValueError(f"must be memory, {SERVER_FORMS}")


def open_store(target: str, ttl_s: float, max_bytes: int) -> ResponseStore:
    """The store.

    Args:
        target: one of the forms of `check_target`.
        ttl_s: how long a response is kept.
        max_bytes: size of all responses; not for a server, which has its own limit.

    Raises:
        StartupError: a file cannot be opened. A server is not contacted before the first request.
    """
    if target.startswith(_SERVERS):
        return ValkeyStore(target, ttl_s)
    if target.startswith("sqlite:"):
        return SqliteStore(target.removeprefix("sqlite:"), ttl_s, max_bytes)
    return MemoryStore(ttl_s, max_bytes)
