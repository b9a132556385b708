"""Unary calls to the frontends: models, tokens, prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from triptych.errors import ModelNotFoundError, ServiceUnavailableError, TriptychError
from triptych.v1 import common_pb2, detokenize_pb2, generation_pb2, preprocess_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.rpc.interceptors import REQUEST_ID_KEY

from triptych_gateway.frontends.connection import FrontendConnection
from triptych_gateway.frontends.router import FrontendRouter, answered

Response = TypeVar("Response")
#: Longest wait for the load of a frontend, in seconds: more than a frontend waits for its encoders.
_LOAD_TIMEOUT_S = 3.0


class FrontendClient:
    """Calls a frontend, and the next one if that is unavailable. Each method raises TriptychError and leaves no call running."""

    def __init__(self, pool: Pool[FrontendConnection], router: FrontendRouter) -> None:
        self._pool = pool
        self._router = router

    def fingerprint(self, model: str) -> str | None:
        """OpenAI's system_fingerprint of a model; None if no ready frontend serves it."""
        served = (info for frontend in self._pool.ready for info in frontend.models)
        return next((f"fp_{info.fingerprint[:12]}" for info in served if info.name == model and info.fingerprint), None)

    async def models(self, request_id: str) -> Sequence[common_pb2.ModelInfo]:
        """The models that requests can name."""
        request = generation_pb2.ListModelsRequest()
        response = await self._ask(lambda frontend: frontend.generation.ListModels(request, metadata=_metadata(request_id)))
        return response.models

    async def model(self, name: str, request_id: str) -> common_pb2.ModelInfo:
        """The model of that name. Raises ModelNotFoundError if there is none."""
        models = await self.models(request_id)
        for model in models:
            if model.name == name:
                return model
        served = ", ".join(model.name for model in models)
        raise ModelNotFoundError(f"no model {name[:100]!r} here; served are: {served}", field="model")

    async def preprocess(self, request: preprocess_pb2.PreprocessRequest, request_id: str) -> preprocess_pb2.PreprocessResponse:
        """Messages to token ids."""
        return await self._ask(lambda frontend: frontend.preprocess.Preprocess(request, metadata=_metadata(request_id)))

    async def tokenize(self, request: preprocess_pb2.TokenizeRequest, request_id: str) -> preprocess_pb2.TokenizeResponse:
        """Text to token ids."""
        return await self._ask(lambda frontend: frontend.preprocess.Tokenize(request, metadata=_metadata(request_id)))

    async def detokenize(self, request: detokenize_pb2.DetokenizeRequest, request_id: str) -> detokenize_pb2.DetokenizeResponse:
        """Token ids to text."""
        return await self._ask(lambda frontend: frontend.detokenize.Detokenize(request, metadata=_metadata(request_id)))

    async def embed(self, request: generation_pb2.EmbedRequest, request_id: str) -> generation_pb2.EmbedResponse:
        """Vectors of inputs."""
        return await self._ask(lambda frontend: frontend.generation.Embed(request, metadata=_metadata(request_id)))

    async def score(self, request: generation_pb2.ScoreRequest, request_id: str) -> generation_pb2.ScoreResponse:
        """Scores of pairs."""
        return await self._ask(lambda frontend: frontend.generation.Score(request, metadata=_metadata(request_id)))

    async def classify(self, request: generation_pb2.ClassifyRequest, request_id: str) -> generation_pb2.ClassifyResponse:
        """Values of labels."""
        return await self._ask(lambda frontend: frontend.generation.Classify(request, metadata=_metadata(request_id)))

    async def loads(self, request_id: str) -> Sequence[generation_pb2.GetLoadResponse]:
        """How busy each connected frontend is, and what it uses. Frontends that do not answer in time are left out.

        Raises:
            ServiceUnavailableError: no frontend answered.
        """
        request = generation_pb2.GetLoadRequest()

        async def ask(frontend: FrontendConnection) -> generation_pb2.GetLoadResponse:
            return await frontend.generation.GetLoad(request, timeout=_LOAD_TIMEOUT_S, metadata=_metadata(request_id))

        await self._pool.until_tried()
        connected = [frontend for frontend in self._pool.connections if frontend.is_connected]
        answers = await asyncio.gather(*(answered(ask, frontend) for frontend in connected), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, TriptychError):
                raise answer
        loads = [answer for answer in answers if isinstance(answer, generation_pb2.GetLoadResponse)]
        if not loads:
            raise next((answer for answer in answers if isinstance(answer, TriptychError)), self._router.away())
        return loads

    async def _ask(self, call: Callable[[FrontendConnection], Awaitable[Response]]) -> Response:
        tried: set[FrontendConnection] = set()
        error: ServiceUnavailableError | None = None
        await self._pool.until_tried()
        while (frontend := self._router.choose((), tried)) is not None:
            tried.add(frontend)
            try:
                return await answered(call, frontend)
            except ServiceUnavailableError as failure:
                error = failure
        raise error or self._router.away()


def _metadata(request_id: str) -> tuple[tuple[str, str], ...]:
    return ((REQUEST_ID_KEY, request_id),)
