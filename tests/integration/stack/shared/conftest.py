"""One stack for all tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.stack import Stack, running_stack


@pytest.fixture(scope="session")
def shared_stack() -> Iterator[Stack]:
    """Runs from the first test that asks for it to the end; an idle one costs its memory and nothing else."""
    with running_stack("--engine.log-level", "DEBUG") as stack:
        yield stack


@pytest.fixture
def stack(shared_stack: Stack) -> Iterator[Stack]:
    """The shared stack. Whatever the test did, nothing of it may be left when it ends."""
    yield shared_stack
    shared_stack.wait_until_empty()
