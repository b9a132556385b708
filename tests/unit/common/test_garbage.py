"""The collector is off while a process imports, and leaves alone what that made."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from triptych_common.host.garbage import startup_objects_frozen


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_is_made_inside_is_not_looked_at_again() -> None:
    with startup_objects_frozen():
        assert not gc.isenabled()
        made: list[list] = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= len(made)
    looked_at = {id(each) for each in gc.get_objects()}
    assert not any(id(each) in looked_at for each in made)


def test_the_collector_is_back_after_a_failed_import() -> None:
    with pytest.raises(ImportError), startup_objects_frozen():
        raise ImportError("no torch")
    assert gc.isenabled()
