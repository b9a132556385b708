"""Chooses a frontend for the calls of each HTTP request, among those that serve its model."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Sequence, Set

from triptych.errors import ServiceUnavailableError, TriptychError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.router import Demand, Placeable, Router

from triptych_gateway.frontends.calls import Calls, FrontendCall, Response
from triptych_gateway.frontends.connection import AWAY, FrontendConnection
from triptych_gateway.frontends.models import ServedModels
from triptych_gateway.frontends.turns import in_turns

log = logging.getLogger(__name__)


class FrontendRouter(Router[FrontendConnection]):
    """Sends calls to frontends."""

    def __init__(self, pool: Pool[FrontendConnection], models: ServedModels) -> None:
        super().__init__(pool)
        self._models = models

    def generate(
        self,
        calls: Sequence[FrontendCall],
        context: common_pb2.CallContext,
        on_accepted: Callable[[], None] = lambda: None,
        at_once: int | None = None,
    ) -> AsyncGenerator[list[tuple[int, Response]], None]:
        """The responses of the calls, each with the index of its call.

        The calls are sent when the first item is requested. The first error ends all calls. Closing the generator cancels them.

        Args:
            on_accepted: called once, when the files of the calls are no longer kept.
            at_once: most calls that run at the same time, each at a frontend of its own choice. None: all, at one frontend.
        """
        if at_once is None or len(calls) == 1:
            return self._generate(calls, context, on_accepted)
        left = itertools.count(len(calls) - 1, -1)

        def accepted() -> None:
            if not next(left):
                on_accepted()

        return in_turns(calls, lambda call: self._generate([call], context, accepted), at_once)

    async def _generate(
        self, calls: Sequence[FrontendCall], context: common_pb2.CallContext, on_accepted: Callable[[], None]
    ) -> AsyncGenerator[list[tuple[int, Response]], None]:
        demand = demand_of(self._models, calls[0].request.model, calls)

        def place_again(mailbox: Calls, error: TriptychError) -> asyncio.Task[None] | None:
            return self.place_again(mailbox, demand, error)

        mailbox = Calls(calls, context, place_again, on_accepted)
        del calls  # only the mailbox keeps the files, until a frontend has answered
        try:
            await self.place(mailbox, demand)
            while responses := await mailbox.next():
                yield responses
        finally:
            mailbox.close()

    def choose(self, demand: Demand[FrontendConnection], tried: Set[str] = frozenset()) -> FrontendConnection | None:
        # A connected frontend without an engine refuses the request with the reason.
        connected = (one for one in self._pool.connections if one.takes_calls)
        return super().choose(demand, tried) or next(filter(self.suiting(demand, tried), connected), None)

    def none_left(self) -> ServiceUnavailableError:
        """The addresses are written to the log and hidden from clients."""
        log.warning("%s", super().none_left())
        return ServiceUnavailableError(AWAY, retry_after_s=1.0)

    async def place(
        self, call: Placeable[FrontendConnection], demand: Demand[FrontendConnection], error: TriptychError | None = None
    ) -> None:
        try:
            if isinstance(call, Calls):
                requests = [one.request for one in call.calls]
                if await self._models.until_served(call.model, requests, tenant=call.context.tenant):
                    call.tried.clear()  # also those that sent it away because they were about to sleep
        except TriptychError as failure:
            call.fail(failure)
            return
        await super().place(call, demand, error)


def demand_of(models: ServedModels, model: str, calls: Sequence[FrontendCall] = ()) -> Demand[FrontendConnection]:
    """What a request to a model asks of a frontend."""
    return Demand(lambda frontend: models.serves(frontend, model), _sticky_key(calls))


def _sticky_key(calls: Sequence[FrontendCall]) -> bytes | None:
    """The first media name (`uuid`) in the request. Only a frontend that has seen the name knows its content."""
    for call in calls:
        if isinstance(call.request, generation_pb2.ChatRequest):
            for message in call.request.messages:
                for part in message.content:
                    if part.media.uuid:
                        return part.media.uuid.encode()
    return None
