"""A model of this machine, what runs it, and which models give way to another one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from triptych.v1 import models_pb2

State = models_pb2.ModelState


@dataclass(frozen=True)
class Usage:
    """What a model does and takes now."""

    num_live_requests: int = 0
    #: Since its last request ended, in seconds; 0 while it works.
    idle_s: float = 0.0
    resident_bytes: int = 0


class ModelServices(Protocol):
    """The services of one model. Only one of these methods but `usage` runs at a time; each raises TriptychError if it fails."""

    async def start(self) -> None:
        """Start them, and wait until they take requests."""
        ...

    async def stop(self) -> None:
        """End them after their work in hand."""
        ...

    async def sleep(self) -> None:
        """Give memory back after the work in hand. May be called while they sleep."""
        ...

    async def wake(self) -> None:
        """Take the memory again, and take requests."""
        ...

    async def usage(self) -> Usage:
        """What they do now, as far as they answer."""
        ...


@dataclass
class Model:
    """A model of this machine. `awake_bytes` and `asleep_bytes` are what it may take then, the former while it `has_memory`."""

    name: str
    source: str
    awake_bytes: int
    asleep_bytes: int
    services: ModelServices
    state: int = State.MODEL_STATE_LOADING
    is_pinned: bool = False
    error: str = ""
    #: Whether it has its memory, or may have it. One that failed has it until it was put to sleep all the same.
    has_memory: bool = True
    #: When it was woken last, by the manager's clock.
    woken_s: float = field(default=0.0)

    @property
    def taken_bytes(self) -> int:
        """What it may take now."""
        return self.awake_bytes if self.has_memory else self.asleep_bytes


def victims(models: Iterable[tuple[Model, Usage]], missing_bytes: int) -> list[Model] | None:
    """The models that go to sleep, so that so many bytes become free; None if that is not possible.

    First those that do nothing, the one that did so for longest before the others; then those that work, the one that was woken
    first before the others.
    """
    order = sorted(models, key=lambda one: (one[1].num_live_requests > 0, -one[1].idle_s, one[0].woken_s))
    chosen: list[Model] = []
    for model, _ in order:
        if missing_bytes <= 0:
            break
        chosen.append(model)
        missing_bytes -= model.awake_bytes - model.asleep_bytes
    return chosen if missing_bytes <= 0 else None
