"""Unary calls to the frontends: models, tokens, prompts, vectors, scores, classes, loads."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, cast

from google.protobuf.message import Message
from triptych.errors import ServiceUnavailableError, TriptychError
from triptych.v1 import common_pb2, detokenize_pb2, generation_pb2, preprocess_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.rpc.channels import CALL_TIMEOUT_S, WORK_TIMEOUT_S
from triptych_common.rpc.interceptors import REQUEST_ID_KEY
from triptych_common.rpc.tracing import trace_metadata

from triptych_gateway.frontends.connection import FrontendConnection
from triptych_gateway.frontends.models import ServedModels
from triptych_gateway.frontends.router import FrontendRouter, demand_of

Response = TypeVar("Response")
#: Longest wait for the load of a frontend, in seconds: more than a frontend waits for its encoders.
_LOAD_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Method(Generic[Response]):
    """A unary method of the frontends.

    Args:
        of: the method of a connection's stub.
        timeout_s: longest time for an answer, in seconds.
        needs_engine: a frontend without an engine cannot answer.
        operation: what traces call work of a model, which takes tokens of its caller's key and is counted; empty for other methods.
    """

    of: Callable[[FrontendConnection], Callable[..., Awaitable[Response]]]
    timeout_s: float
    needs_engine: bool = True
    operation: str = ""


_LIST_MODELS = Method(lambda frontend: frontend.generation.ListModels, CALL_TIMEOUT_S)
PREPROCESS = Method(lambda frontend: frontend.preprocess.Preprocess, WORK_TIMEOUT_S, needs_engine=False)
TOKENIZE = Method(lambda frontend: frontend.preprocess.Tokenize, CALL_TIMEOUT_S, needs_engine=False)
DETOKENIZE = Method(lambda frontend: frontend.detokenize.Detokenize, CALL_TIMEOUT_S, needs_engine=False)
EMBED = Method(lambda frontend: frontend.generation.Embed, WORK_TIMEOUT_S, operation="embeddings")
SCORE = Method(lambda frontend: frontend.generation.Score, WORK_TIMEOUT_S, operation="score")
CLASSIFY = Method(lambda frontend: frontend.generation.Classify, WORK_TIMEOUT_S, operation="classify")


class FrontendClient:
    """Calls a frontend, and the next one if that is unavailable. Each method raises TriptychError and leaves no call running."""

    def __init__(self, pool: Pool[FrontendConnection], router: FrontendRouter, models: ServedModels) -> None:
        self._pool, self._router, self._models = pool, router, models

    def fingerprint(self, model: str) -> str | None:
        """OpenAI's system_fingerprint of a model; None if no ready frontend serves it."""
        served = (info for frontend in self._pool.ready for info in frontend.models)
        known = next((info for info in served if info.name == model and info.fingerprint), None)
        if known is None:
            return None
        # Two revisions of a model may differ in nothing but their weights.
        whole = hashlib.sha256(f"{known.fingerprint} {known.weights_fingerprint}".encode()).hexdigest()
        return f"fp_{whole[:12] if known.weights_fingerprint else known.fingerprint[:12]}"

    @property
    def known_names(self) -> set[str]:
        """The names of all known models, and of the adapters that frontends told of."""
        return {*self._models.names, *(info.name for one in self._pool.connections for info in one.models)}

    def known(self, name: str) -> common_pb2.ModelInfo | None:
        """What frontends told of a model; of an adapter that they did not tell of, its model. None while no frontend told of it."""
        told = {info.name: info for one in self._pool.connections for info in one.models}
        return told.get(name) or told.get(self._models.base_of(name))

    @property
    def loaded(self) -> Sequence[common_pb2.ModelInfo]:
        """The models that answer now without being woken, without adapters."""
        return list({info.name: info for one in self._pool.ready for info in one.models if not info.parent}.values())

    async def load(self, model: str, tenant: str) -> None:
        """Wait until a model can answer. One that sleeps is woken.

        Raises:
            ServiceUnavailableError: it did not come in time. See also `ServedModels.until_served`.
        """
        await self._models.until_served(model, tenant=tenant)
        if not self._models.is_served(model):
            raise self._router.none_left()

    async def models(self, request_id: str) -> Sequence[common_pb2.ModelInfo]:
        """The models that requests can name now. Raises ServiceUnavailableError if no frontend answers."""
        await self._pool.until_tried()
        connected = [frontend for frontend in self._pool.connections if frontend.takes_calls]
        names = {frontend.models[0].name if frontend.models else "" for frontend in connected} or {""}
        served, errors = await _outcomes(self._list(name, request_id) for name in sorted(names))
        if errors and len(names) == 1:
            raise errors[0]
        return list({info.name: info for models in served for info in models}.values())

    async def _list(self, model: str, request_id: str) -> Sequence[common_pb2.ModelInfo]:
        """The models of a frontend that serves this one."""
        response = await self._ask(model, _LIST_MODELS, generation_pb2.ListModelsRequest(), request_id, waits=False)
        return response.models

    async def model(self, name: str, request_id: str) -> common_pb2.ModelInfo:
        """The model of that name. Raises ModelNotFoundError if there is none."""
        await self._models.check(name)
        for info in await self._list(name, request_id):
            if info.name == name:
                return info
        raise self._models.unknown(name)

    async def call(self, method: Method[Response], request: Message, request_id: str) -> Response:
        """The answer of a frontend of the model that the request names."""
        return await self._ask(model_of(request), method, request, request_id)

    async def detokenize_stream(
        self, model: str, requests: AsyncIterator[detokenize_pb2.DetokenizeStreamRequest], request_id: str
    ) -> AsyncGenerator[detokenize_pb2.DetokenizeStreamResponse, None]:
        """Growing token ids of a model to text, by one frontend."""
        await self._models.until_served(model, needs_engine=False)
        frontend = self._router.choose(demand_of(self._models, model))
        if frontend is None:
            raise self._router.none_left()
        with frontend.in_use():
            call = frontend.detokenize.DetokenizeStream(requests, metadata=_metadata(request_id))
            try:
                while isinstance(response := await frontend.answered(call.read), detokenize_pb2.DetokenizeStreamResponse):
                    yield response
            finally:
                call.cancel()

    async def loads(self, request_id: str) -> Sequence[generation_pb2.GetLoadResponse]:
        """How busy each connected frontend is, and what it uses. Frontends that do not answer in time are left out.

        Raises:
            ServiceUnavailableError: no frontend answered.
        """
        request = generation_pb2.GetLoadRequest()

        async def ask(frontend: FrontendConnection) -> generation_pb2.GetLoadResponse:
            with frontend.in_use():
                get = partial(frontend.generation.GetLoad, request, timeout=_LOAD_TIMEOUT_S, metadata=_metadata(request_id))
                return await frontend.answered(get)

        await self._pool.until_tried()
        connected = [frontend for frontend in self._pool.connections if frontend.is_connected]
        loads, errors = await _outcomes(ask(frontend) for frontend in connected)
        if not loads:
            raise [*errors, self._router.none_left()][0]
        return loads

    async def _ask(
        self, model: str, method: Method[Response], request: Message, request_id: str, *, waits: bool = True
    ) -> Response:
        """The answer of the first frontend of this model that gives one.

        Args:
            waits: if there is no frontend of this model, wait for one.
        """
        context: common_pb2.CallContext | None = getattr(request, "context", None)
        tenant = context.tenant if context is not None else ""

        def call(frontend: FrontendConnection) -> Awaitable[Response]:
            metadata = _metadata(request_id)
            return frontend.answered(lambda: method.of(frontend)(request, timeout=method.timeout_s, metadata=metadata))

        if not waits:
            await self._pool.until_tried()
            return await self._router.ask(demand_of(self._models, model), call, waits=False)
        await self._models.until_served(model, [request], tenant=tenant, needs_engine=method.needs_engine)
        try:
            return await self._router.ask(demand_of(self._models, model), call)
        except ServiceUnavailableError:
            # It may have been sent away because the model was about to sleep.
            if not await self._models.until_served(model, [request], tenant=tenant, needs_engine=method.needs_engine):
                raise
        return await self._router.ask(demand_of(self._models, model), call)


async def _outcomes(work: Iterable[Awaitable[Response]]) -> tuple[list[Response], list[TriptychError]]:
    """What came of work that runs at the same time, and the errors of what failed. Raises the first other exception."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    failures = [one for one in outcomes if isinstance(one, BaseException)]
    for failure in failures:
        if not isinstance(failure, TriptychError):
            raise failure
    return [one for one in outcomes if not isinstance(one, BaseException)], cast("list[TriptychError]", failures)


def model_of(request: Message) -> str:
    """The model that a request of a unary call names."""
    if isinstance(request, preprocess_pb2.PreprocessRequest):
        return request.chat.model or request.complete.model
    return getattr(request, "model", "")


def _metadata(request_id: str) -> tuple[tuple[str, str], ...]:
    return ((REQUEST_ID_KEY, request_id), *trace_metadata())
