"""Chooses an engine for each request."""

from __future__ import annotations

from collections import Counter

from triptych.v1 import engine_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.router import Router

from triptych_frontend.engines.call import EngineCall
from triptych_frontend.engines.connection import EngineConnection
from triptych_frontend.engines.placement import Cause, Listener
from triptych_frontend.engines.policy import Routing, demand_of


class EngineRouter(Router[EngineConnection]):
    """Sends requests to engines.

    Args:
        routing: see engines.policy.
    """

    def __init__(self, pool: Pool[EngineConnection], routing: Routing = "prefix") -> None:
        super().__init__(pool)
        self._routing: Routing = routing
        #: Sequences that went on at another engine since the start, by cause.
        self.num_moved: Counter[Cause] = Counter()

    def start(self, request: engine_pb2.EngineRequest, listener: Listener, first_index: int = 0) -> EngineCall:
        """Hand a request to an engine. If the last one went away a moment ago, the request waits for another one.

        Args:
            first_index: what listener and caller call the first sequence.

        Raises:
            ServiceUnavailableError: no engine is available.
            InvalidRequestError: the request is too large for one message.
            InternalError: a live request has the same request id.
        """
        return EngineCall(self, request, listener, self._routing, self.num_moved, first_index)

    async def embed(self, request: engine_pb2.EngineServiceEmbedRequest, request_id: str) -> engine_pb2.EngineServiceEmbedResponse:
        """Vectors of prompts, from the engine that `choose` gives the first one, or from another engine if that does not take them.

        Raises:
            TriptychError: no engine took them, or one failed.
        """

        async def call(engine: EngineConnection) -> engine_pb2.EngineServiceEmbedResponse:
            with engine.counted():
                return await engine.embed(request, request_id)

        # Engines that embed have no prefix cache.
        return await self.ask(demand_of(request.requests[0], "least-load"), call)
