"""The models behind this gateway: which names requests can use, and waiting for a model whose frontends are not there yet."""

from __future__ import annotations

from collections import Counter

from triptych.errors import InvalidRequestError, ModelNotFoundError
from triptych_common.cluster.pool import Pool

from triptych_gateway.frontends.connection import FrontendConnection


class ServedModels:
    """The models of all frontends.

    Args:
        pool: the frontends.
        expected: names of models that count as known before any of their frontends was reached, e.g. as they are scaled to zero.
        wait_s: how long a request waits for a frontend of a known model, in seconds.
    """

    def __init__(self, pool: Pool[FrontendConnection], expected: tuple[str, ...] = (), wait_s: float = 0.0) -> None:
        self._pool = pool
        self._expected = expected
        self._wait_s = wait_s
        #: Model -> requests that wait for a frontend of it.
        self.num_waiting: Counter[str] = Counter()

    @property
    def names(self) -> list[str]:
        """The known models, those whose frontends are away included."""
        heard = (info.name for frontend in self._pool.connections for info in frontend.models)
        return list(dict.fromkeys([*self._expected, *heard]))

    async def until_served(self, model: str, *, needs_engine: bool = True) -> None:
        """Wait until a frontend of this model is there, but not longer than `wait_s`. Then the caller finds none.

        Args:
            needs_engine: a frontend without an engine is not enough.

        Raises:
            ModelNotFoundError: no model has this name.
            InvalidRequestError: the name is empty, and there are several models.
        """
        await self.check(model)
        if not self._wait_s or self._is_served(model, needs_engine):
            return
        # Other names are the clients', and would be as many series of a metric. Without a name, the only model is meant.
        names = self.names
        name = model if model in names else names[0] if len(names) == 1 and not model else ""
        self.num_waiting[name] += 1
        try:
            await self._pool.until(lambda: self._is_served(model, needs_engine), self._wait_s)
        finally:
            self.num_waiting[name] -= 1
            if not self.num_waiting[name]:
                del self.num_waiting[name]

    async def check(self, model: str) -> None:
        """Raise the errors of `until_served`, once it is known which models there are."""
        await self._pool.until_tried()
        if model not in self.names:
            await self._pool.until_tried(all_of_them=True)
        self._check(model)

    def _check(self, model: str) -> None:
        names = self.names
        if not model and len(names) > 1:
            served = ", ".join(names)
            raise InvalidRequestError(f"several models are served; name one of them: {served}", field="model", limit=served)
        # Without any name, no frontend was reached yet.
        if model and names and model not in names:
            raise self.unknown(model)

    def unknown(self, model: str) -> ModelNotFoundError:
        """The error of a request that names another model."""
        served = ", ".join(self.names)
        return ModelNotFoundError(f"no model {model[:100]!r} here; served are: {served}", field="model", limit=served, value=model)

    def _is_served(self, model: str, needs_engine: bool) -> bool:
        return any(one.serves(model) and (one.is_ready if needs_engine else one.takes_calls) for one in self._pool.connections)
