from __future__ import annotations

from pathlib import Path

import pytest
from support.keys import KeyStore


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    """Keys of two tenants and of an operator."""
    store = KeyStore(tmp_path / "keys.json")
    store.add("a", tenant="a")
    store.add("b", tenant="b")
    store.add("boss", operator=True)
    return store
