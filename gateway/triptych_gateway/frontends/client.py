"""Unary calls to the frontends: models, tokens, prompts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message
from triptych.errors import ServiceUnavailableError, TriptychError
from triptych.v1 import common_pb2, detokenize_pb2, generation_pb2, preprocess_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.rpc.channels import CALL_TIMEOUT_S, WORK_TIMEOUT_S
from triptych_common.rpc.interceptors import REQUEST_ID_KEY
from triptych_common.rpc.tracing import trace_metadata

from triptych_gateway.frontends.connection import FrontendConnection
from triptych_gateway.frontends.models import ServedModels
from triptych_gateway.frontends.router import FrontendRouter, answered

Response = TypeVar("Response")
#: Longest wait for the load of a frontend, in seconds: more than a frontend waits for its encoders.
_LOAD_TIMEOUT_S = 3.0


class FrontendClient:
    """Calls a frontend, and the next one if that is unavailable. Each method raises TriptychError and leaves no call running."""

    def __init__(self, pool: Pool[FrontendConnection], router: FrontendRouter, models: ServedModels) -> None:
        self._pool = pool
        self._router = router
        self._models = models

    def fingerprint(self, model: str) -> str | None:
        """OpenAI's system_fingerprint of a model; None if no ready frontend serves it."""
        served = (info for frontend in self._pool.ready for info in frontend.models)
        known = next((info for info in served if info.name == model and info.fingerprint), None)
        if known is None:
            return None
        # Two revisions of a model may differ in nothing but their weights.
        whole = hashlib.sha256(f"{known.fingerprint} {known.weights_fingerprint}".encode()).hexdigest()
        return f"fp_{whole[:12] if known.weights_fingerprint else known.fingerprint[:12]}"

    async def models(self, request_id: str) -> Sequence[common_pb2.ModelInfo]:
        """The models that requests can name now. Raises ServiceUnavailableError if no frontend answers."""
        await self._pool.until_tried()
        connected = [frontend for frontend in self._pool.connections if frontend.takes_calls]
        names = {frontend.models[0].name if frontend.models else "" for frontend in connected} or {""}
        answers = await asyncio.gather(*(self._list(name, request_id) for name in sorted(names)), return_exceptions=True)
        found: dict[str, common_pb2.ModelInfo] = {}
        for answer in answers:
            if isinstance(answer, BaseException):
                if not isinstance(answer, TriptychError) or len(answers) == 1:
                    raise answer
            else:
                found.update((info.name, info) for info in answer)
        return list(found.values())

    async def _list(self, model: str, request_id: str) -> Sequence[common_pb2.ModelInfo]:
        """The models of a frontend that serves this one."""
        request = generation_pb2.ListModelsRequest()
        response = await self._ask(
            model, lambda frontend: frontend.generation.ListModels, request, request_id, CALL_TIMEOUT_S, waits=False
        )
        return response.models

    async def model(self, name: str, request_id: str) -> common_pb2.ModelInfo:
        """The model of that name. Raises ModelNotFoundError if there is none."""
        await self._models.check(name)
        for info in await self._list(name, request_id):
            if info.name == name:
                return info
        raise self._models.unknown(name)

    async def preprocess(self, request: preprocess_pb2.PreprocessRequest, request_id: str) -> preprocess_pb2.PreprocessResponse:
        """Messages to token ids."""
        model = request.chat.model or request.complete.model
        return await self._ask(
            model, lambda frontend: frontend.preprocess.Preprocess, request, request_id, WORK_TIMEOUT_S, needs_engine=False
        )

    async def tokenize(self, request: preprocess_pb2.TokenizeRequest, request_id: str) -> preprocess_pb2.TokenizeResponse:
        """Text to token ids of a model."""
        return await self._ask(
            request.model, lambda frontend: frontend.preprocess.Tokenize, request, request_id, CALL_TIMEOUT_S, needs_engine=False
        )

    async def detokenize(self, request: detokenize_pb2.DetokenizeRequest, request_id: str) -> detokenize_pb2.DetokenizeResponse:
        """Token ids of a model to text."""
        return await self._ask(
            request.model, lambda frontend: frontend.detokenize.Detokenize, request, request_id, CALL_TIMEOUT_S, needs_engine=False
        )

    async def detokenize_stream(
        self, model: str, requests: AsyncIterator[detokenize_pb2.DetokenizeStreamRequest], request_id: str
    ) -> AsyncGenerator[detokenize_pb2.DetokenizeStreamResponse, None]:
        """Growing token ids of a model to text, by one frontend."""
        await self._models.until_served(model, needs_engine=False)
        frontend = self._router.choose(model, set())
        if frontend is None:
            raise self._router.away()
        with frontend.in_use():
            call = frontend.detokenize.DetokenizeStream(requests, metadata=_metadata(request_id))
            try:
                while isinstance(
                    response := await answered(lambda _: call.read(), frontend), detokenize_pb2.DetokenizeStreamResponse
                ):
                    yield response
            finally:
                call.cancel()

    async def embed(self, request: generation_pb2.EmbedRequest, request_id: str) -> generation_pb2.EmbedResponse:
        """Vectors of inputs."""
        return await self._ask(request.model, lambda frontend: frontend.generation.Embed, request, request_id, WORK_TIMEOUT_S)

    async def score(self, request: generation_pb2.ScoreRequest, request_id: str) -> generation_pb2.ScoreResponse:
        """Scores of pairs."""
        return await self._ask(request.model, lambda frontend: frontend.generation.Score, request, request_id, WORK_TIMEOUT_S)

    async def classify(self, request: generation_pb2.ClassifyRequest, request_id: str) -> generation_pb2.ClassifyResponse:
        """Values of labels."""
        return await self._ask(request.model, lambda frontend: frontend.generation.Classify, request, request_id, WORK_TIMEOUT_S)

    async def loads(self, request_id: str) -> Sequence[generation_pb2.GetLoadResponse]:
        """How busy each connected frontend is, and what it uses. Frontends that do not answer in time are left out.

        Raises:
            ServiceUnavailableError: no frontend answered.
        """
        request = generation_pb2.GetLoadRequest()

        async def ask(frontend: FrontendConnection) -> generation_pb2.GetLoadResponse:
            with frontend.in_use():
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

    async def _ask(
        self,
        model: str,
        method: Callable[[FrontendConnection], Callable[..., Awaitable[Response]]],
        request: Message,
        request_id: str,
        timeout_s: float,
        *,
        needs_engine: bool = True,
        waits: bool = True,
    ) -> Response:
        """The answer of the first frontend of this model that gives one.

        Args:
            needs_engine: a frontend without an engine cannot answer.
            waits: if there is no frontend of this model, wait for one.
        """
        tried: set[str] = set()
        error: ServiceUnavailableError | None = None
        if waits:
            context: common_pb2.CallContext | None = getattr(request, "context", None)
            tenant = context.tenant if context is not None else ""
            await self._models.until_served(model, [request], tenant=tenant, needs_engine=needs_engine)
        else:
            await self._pool.until_tried()

        def call(frontend: FrontendConnection) -> Awaitable[Response]:
            return method(frontend)(request, timeout=timeout_s, metadata=_metadata(request_id))

        while True:
            frontend = self._router.choose(model, tried)
            if frontend is None:
                if waits and await self._router.until_other(model, tried, error):
                    continue
                raise error or self._router.away()
            tried.add(frontend.instance_id)
            try:
                with frontend.in_use():
                    return await answered(call, frontend)
            except ServiceUnavailableError as failure:
                error = failure


def _metadata(request_id: str) -> tuple[tuple[str, str], ...]:
    return ((REQUEST_ID_KEY, request_id), *trace_metadata())
