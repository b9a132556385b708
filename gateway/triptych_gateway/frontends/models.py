"""The models behind this gateway: which names requests can use, and waiting for a model whose frontends are not there yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextvars import ContextVar

from google.protobuf.message import Message
from triptych.errors import InvalidRequestError, ModelNotFoundError, ServiceUnavailableError
from triptych.v1 import common_pb2
from triptych_common.cluster.pool import GRACE_S, Pool
from triptych_common.host.fair_share import FairShare

from triptych_gateway.frontends.connection import FrontendConnection

#: Memory of all requests that wait for models, in bytes. Further ones are refused.
MAX_WAITING_BYTES = 256 << 20
#: What a request takes beside its messages: a connection, tasks, headers.
_REQUEST_BYTES = 64 << 10
_RETRY_AFTER_S = 10.0
#: The models that errors of the current request may name, which are those of its key. None: all.
visible_models_var: ContextVar[frozenset[str] | None] = ContextVar("visible_models", default=None)


class ServedModels:
    """The models of all frontends.

    Args:
        pool: the frontends.
        expected: names of models that count as known before any of their frontends was reached, e.g. as they are scaled to zero.
        wait_s: how long a request waits for a frontend of a known model, in seconds.
        waiting: shares of the bytes of requests that wait.
        wake: returns when a model has its memory, and whether it was asleep.
    """

    def __init__(
        self,
        pool: Pool[FrontendConnection],
        expected: tuple[str, ...] = (),
        wait_s: float = 0.0,
        waiting: FairShare | None = None,
        wake: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        self._pool = pool
        self._expected = expected
        self._wait_s = wait_s
        #: Model -> requests that wait for a frontend of it.
        self.num_waiting: Counter[str] = Counter()
        self._wake = wake
        self._waiting = waiting or FairShare(MAX_WAITING_BYTES, max_tenants=1)

    @property
    def names(self) -> list[str]:
        """The known models, those whose frontends are away included, without adapters."""
        return list(dict.fromkeys([*self._expected, *(info.name for info in self._heard if not info.parent)]))

    @property
    def _heard(self) -> Iterator[common_pb2.ModelInfo]:
        return (info for frontend in self._pool.connections for info in frontend.models)

    def base_of(self, model: str) -> str:
        """The model that an adapter is of, which is named as `model:adapter`; of any other name the name itself.

        Adapters can come at any time: the engines know whether there is one of this name. A model whose frontends are away may take
        some.
        """
        if ":" not in model or model in (names := self.names):
            return model
        heard = [info for info in self._heard if model.startswith(f"{info.name}:")]
        refusing = {info.name for info in heard} - {info.name for info in heard if info.capabilities.lora}
        bases = [name for name in names if model.startswith(f"{name}:") and model != f"{name}:" and name not in refusing]
        return max(bases, key=len, default=model)

    def serves(self, frontend: FrontendConnection, model: str) -> bool:
        """Whether a frontend serves the model of this name, or the model that the adapter of this name is of."""
        return frontend.serves(self.base_of(model))

    async def until_served(
        self, model: str, messages: Iterable[Message] = (), *, tenant: str = "", needs_engine: bool = True
    ) -> bool:
        """Wait until a frontend of this model is there, but not longer than `wait_s`. Then the caller finds none.

        If one was there a moment ago, as in a rolling restart, the wait is at least the pool's time of grace. A model that sleeps
        is woken, which may take as long as others need to finish their work. A model that is unloaded meanwhile is not waited for.

        Args:
            messages: what the request keeps in memory while it waits.
            tenant: whose request it is.
            needs_engine: a frontend without an engine is not enough.

        Returns:
            whether the model was asleep.

        Raises:
            ModelNotFoundError: no model has this name.
            InvalidRequestError: the name is empty, and there are several models.
            ServiceUnavailableError: too many requests wait, or too many of this tenant, or the model cannot be woken.
        """
        await self.check(model)
        if self.is_served(model, needs_engine):
            return False
        wait_s = max(self._wait_s, self._pool.grace_left_s(suits=lambda one: self.serves(one, model)))
        if wait_s <= 0 and self._wake is None:
            return False
        num_bytes = _REQUEST_BYTES + sum(message.ByteSize() for message in messages)
        if not self._waiting.take(tenant, num_bytes):
            message = "the model's frontend is away, and too many requests wait for one; try again later"
            raise ServiceUnavailableError(message, retry_after_s=_RETRY_AFTER_S)
        # Other names are the clients', and would be as many series of a metric. Without a name, the only model is meant.
        names, base = self.names, self.base_of(model)
        name = base if base in names else names[0] if len(names) == 1 and not model else ""
        self.num_waiting[name] += 1
        try:
            if was_asleep := self._wake is not None and bool(name) and await self._wake(name):
                wait_s = max(wait_s, GRACE_S)
            if wait_s > 0:
                await self._until_served_or_gone(model, needs_engine, wait_s)
            return was_asleep
        finally:
            self.num_waiting[name] -= 1
            self._waiting.give_back(tenant, num_bytes)
            if not self.num_waiting[name]:
                del self.num_waiting[name]

    async def _until_served_or_gone(self, model: str, needs_engine: bool, wait_s: float) -> None:
        """Wait for a frontend. Raises ModelNotFoundError when the last one is no longer listed, and no other one follows."""

        def is_served() -> bool:
            return self.is_served(model, needs_engine)

        def is_gone() -> bool:
            # A frontend that was never reached may serve it.
            return self._is_unknown(model) and all(one.was_tried.is_set() for one in self._pool.connections)

        if await self._pool.until(lambda: is_served() or is_gone(), wait_s) and not is_served():
            # A successor with another address may be listed a moment later.
            await self._pool.until(is_served, self._pool.grace_left_s(suits=lambda one: self.serves(one, model)))
            if is_gone():
                raise self.unknown(model)

    async def check(self, model: str) -> None:
        """Raise the errors of `until_served`, once it is known which models there are."""
        await self._pool.until_tried()
        if self._is_unknown(model):
            await self._pool.until_tried(all_of_them=True)
        names = self.names
        if not model and len(names) > 1:
            served = _visible(names)
            raise InvalidRequestError(f"several models are served; name one of them: {served}", field="model", limit=served)
        if self._is_unknown(model):
            raise self.unknown(model)

    def _is_unknown(self, model: str) -> bool:
        """Whether other models are known, and this one is not. Without any name, no frontend was reached yet."""
        names = self.names
        return bool(model and names) and self.base_of(model) not in names

    def unknown(self, model: str) -> ModelNotFoundError:
        """The error of a request that names another model."""
        served = _visible(self.names)
        told = f"no model {model[:100]!r} here" + (f"; served are: {served}" if served else "")
        return ModelNotFoundError(told, field="model", limit=served, value=model)

    def is_served(self, model: str, needs_engine: bool = True) -> bool:
        """Whether there is a frontend of this model now, and with it an engine if one is needed."""
        suiting = (one for one in self._pool.connections if self.serves(one, model))
        return any(one.is_ready if needs_engine else one.takes_calls for one in suiting)


def _visible(names: list[str]) -> str:
    """The names that the current request may know."""
    visible = visible_models_var.get()
    return ", ".join(name for name in names if visible is None or name in visible)
