"""Which models have memory now.

One change happens at a time, in the order in which they were asked for. So a model that many wait for is woken once, and no model
is put to sleep for one that gets no memory after all. A model that works all the time has to give way as well: it finishes what it
has begun, and its next requests wait until it is its turn again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from triptych.errors import InvalidRequestError, ModelNotFoundError, ServiceUnavailableError, TriptychError

from triptych_cli.manager.model import Model, State, victims

log = logging.getLogger(__name__)
#: A model that was woken serves for so long at least, so that what waited for it gets through, in seconds.
MIN_AWAKE_S = 2.0
#: Pause between two looks at whether sleeping models still sleep: a service that died starts with its memory. In seconds.
CHECK_S = 3.0
_RETRY_AFTER_S = 5.0


@dataclass
class _Waking:
    """A wake that several callers wait for."""

    task: asyncio.Task[Model] | None = None
    num_callers: int = 0


class ModelManager:
    """The models of one machine.

    Args:
        budget: what they may take together, in bytes; None if they need not share.
        clock: seconds, monotonic.
    """

    def __init__(self, budget: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.budget = budget
        self._clock = clock
        self._models: dict[str, Model] = {}
        #: Fair: who waits first is first.
        self._turn = asyncio.Lock()
        #: Name of a model -> the wake that waits for its turn, or is being made.
        self._wakes: dict[str, _Waking] = {}
        self._changes: set[asyncio.Task[Any]] = set()

    @property
    def models(self) -> list[Model]:
        """All of them, in the order in which they came."""
        return list(self._models.values())

    def is_awake(self, name: str) -> bool:
        """Whether a model has its memory, or is about to for the first time. Raises ModelNotFoundError."""
        return self._named(name).state in (State.MODEL_STATE_AWAKE, State.MODEL_STATE_LOADING)

    async def start(self, models: Sequence[Model]) -> None:
        """Start models. Those that the memory does not suffice for are started first, one by one, and put to sleep."""
        left = None if self.budget is None else self.budget - sum(model.asleep_bytes for model in models)
        awake: list[Model] = []
        for model in models:
            self._models[model.name] = model
            extra = model.awake_bytes - model.asleep_bytes
            if left is None or extra <= left:
                awake.append(model)
                left = None if left is None else left - extra
        async with self._turn:
            for model in models:
                if model not in awake:
                    await self._started(model)
                    with contextlib.suppress(TriptychError):
                        await self._fall_asleep(model)
            await asyncio.gather(*(self._started(model) for model in awake))

    async def load(self, model: Model) -> Model:
        """Add a model, and start it. Raises TriptychError; then it is not there."""
        return await self._in_turn(lambda: self._load(model))

    async def unload(self, name: str) -> None:
        """Stop a model and forget it. Raises ModelNotFoundError."""
        await self._in_turn(lambda: self._unload(self._named(name)))

    async def wake(self, name: str) -> Model:
        """Wait until a model has its memory. Others go to sleep for it if they must. All callers wait for the same wake.

        Raises:
            ModelNotFoundError: there is no such model.
            ServiceUnavailableError: there is no memory for it beside those that are pinned, or it cannot be woken.
        """
        model = self._named(name)
        if self.is_awake(name):
            return model
        waking = self._wakes.setdefault(name, _Waking())
        if waking.task is None:
            waking.task = asyncio.create_task(self._wake_in_turn(model, waking), name=f"waking {name}")
            self._note(waking.task)
        waking.num_callers += 1
        try:
            return await asyncio.shield(waking.task)
        finally:
            waking.num_callers -= 1

    async def sleep(self, name: str) -> Model:
        """Put a model to sleep, also one that is pinned. Raises ModelNotFoundError."""
        return await self._in_turn(lambda: self._sleep(self._named(name)))

    def pin(self, name: str, is_pinned: bool) -> Model:
        """Say whether a model may be put to sleep for others. Raises ModelNotFoundError."""
        model = self._named(name)
        model.is_pinned = is_pinned
        return model

    async def watch(self) -> None:
        """Put models back to sleep whose services were started anew, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            async with self._turn:
                for model in self.models:
                    if model.state in (State.MODEL_STATE_ASLEEP, State.MODEL_STATE_FAILED):
                        await self._give_back(model)

    async def close(self) -> None:
        """End the change in progress, and those that wait for it."""
        for task in self._changes:
            task.cancel()
        await asyncio.gather(*self._changes, return_exceptions=True)

    def _named(self, name: str) -> Model:
        if name not in self._models:
            raise ModelNotFoundError(
                f"no model {name[:100]!r} here; there are: {', '.join(self._models)}", field="model", value=name
            )
        return self._models[name]

    async def _in_turn(self, change: Callable[[], Any]) -> Any:
        """Make a change when it is its turn. It is made also if the caller has gone: half a change would leave memory taken."""

        async def make() -> Any:
            async with self._turn:
                return await change()

        task = asyncio.create_task(make(), name="a change of the models")
        self._note(task)
        return await asyncio.shield(task)

    def _note(self, task: asyncio.Task[Any]) -> None:
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        # Its callers may have gone, and nobody else looks at its error.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _wake_in_turn(self, model: Model, waking: _Waking) -> Model:
        try:
            async with self._turn:
                if waking.num_callers:  # else all have gone
                    await self._wake(model)
                return model
        finally:
            self._wakes.pop(model.name, None)

    async def _load(self, model: Model) -> Model:
        if model.name in self._models:
            raise InvalidRequestError(f"there is a model {model.name} already", field="name", value=model.name)
        least = model.awake_bytes + sum(other.asleep_bytes for other in self.models)
        if self.budget is not None and least > self.budget:
            message = f"{model.name} can never fit: it needs {least >> 20} MiB of {self.budget >> 20}, other models asleep"
            raise InvalidRequestError(message, limit=self.budget, value=least)
        await self._make_room(model, model.awake_bytes)
        self._models[model.name] = model
        try:
            await model.services.start()
        except TriptychError:
            await model.services.stop()
            del self._models[model.name]
            raise
        self._note_awake(model)
        return model

    async def _unload(self, model: Model) -> None:
        model.state = State.MODEL_STATE_DRAINING
        try:
            await model.services.stop()
        finally:
            self._models.pop(model.name, None)

    async def _wake(self, model: Model) -> None:
        if model.state == State.MODEL_STATE_AWAKE:
            return
        if not model.has_memory:
            await self._make_room(model, model.awake_bytes - model.asleep_bytes)
        model.has_memory = True
        try:
            async with self._changing(model, State.MODEL_STATE_WAKING):
                await model.services.wake()
        except TriptychError:
            await self._give_back(model)
            raise
        self._note_awake(model)

    async def _sleep(self, model: Model) -> Model:
        if model.state == State.MODEL_STATE_AWAKE:
            await self._fall_asleep(model)
        return model

    async def _started(self, model: Model) -> None:
        """Start a model with the others. If it fails, its state says so, and the others go on."""
        try:
            async with self._changing(model, State.MODEL_STATE_LOADING):
                await model.services.start()
            self._note_awake(model)
        except TriptychError:
            await self._give_back(model)

    async def _fall_asleep(self, model: Model) -> None:
        if model.state == State.MODEL_STATE_FAILED:
            return
        async with self._changing(model, State.MODEL_STATE_DRAINING):
            await model.services.sleep()
        model.state, model.has_memory = State.MODEL_STATE_ASLEEP, False
        log.info("the model %s sleeps", model.name)

    async def _give_back(self, model: Model) -> None:
        """Take a model's memory, whatever its services do now: they failed, or were started anew."""
        with contextlib.suppress(TriptychError):
            await model.services.sleep()
            model.has_memory = False

    async def _make_room(self, wanted: Model, missing_bytes: int) -> None:
        """Put models to sleep until so many bytes are free. Raises ServiceUnavailableError if they are too few."""
        if self.budget is None:
            return
        missing_bytes += sum(model.taken_bytes for model in self.models) - self.budget
        if missing_bytes <= 0:
            return
        others = [model for model in self.models if model.state == State.MODEL_STATE_AWAKE and not model.is_pinned]
        usages = await asyncio.gather(*(model.services.usage() for model in others))
        chosen = victims(zip(others, usages, strict=True), missing_bytes)
        if chosen is None:
            pinned = ", ".join(model.name for model in self.models if model.is_pinned and model.has_memory)
            beside = f" beside those that are pinned ({pinned})" if pinned else ""
            needs = f"it needs {wanted.awake_bytes >> 20} MiB of {self.budget >> 20}"
            message = f"there is no memory for the model {wanted.name}{beside}: {needs}"
            raise ServiceUnavailableError(message, retry_after_s=_RETRY_AFTER_S)
        for model in chosen:
            await asyncio.sleep(model.woken_s + MIN_AWAKE_S - self._clock())
            await self._fall_asleep(model)

    def _note_awake(self, model: Model) -> None:
        model.state, model.error, model.woken_s = State.MODEL_STATE_AWAKE, "", self._clock()

    @contextlib.asynccontextmanager
    async def _changing(self, model: Model, state: int) -> AsyncIterator[None]:
        """The state while the block runs. An error of the block becomes the model's."""
        model.state = state
        try:
            yield
        except TriptychError as error:
            model.state, model.error = State.MODEL_STATE_FAILED, error.message
            log.error("the model %s cannot be used: %s", model.name, error.message)
            raise
