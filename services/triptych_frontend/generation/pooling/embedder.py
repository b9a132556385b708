"""Answers Embed, Score and Classify: checks, token ids, answers of engines in the form of the client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from triptych.errors import InvalidRequestError, UnimplementedError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.model.pooling import PoolingModel, check_pooling
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES
from triptych_common.rpc.tensors import from_numpy
from triptych_common.rpc.tracing import trace_of
from triptych_common.telemetry import attributes as names
from triptych_common.telemetry.logs import request_id_var
from triptych_common.telemetry.trace_context import trace_var
from triptych_common.telemetry.tracing import OFF, Tracer

from triptych_frontend.generation.admission import Admission
from triptych_frontend.generation.pooling.batches import EngineBatches, Pooled
from triptych_frontend.generation.pooling.inputs import Caller, Input, PoolingInputs
from triptych_frontend.generation.statistics import CallMeter, CallStatistics
from triptych_frontend.served_model import ServedModel

Request = generation_pb2.EmbedRequest | generation_pb2.ScoreRequest | generation_pb2.ClassifyRequest
#: Room for everything but the vectors in a response.
_MAX_VECTOR_BYTES = MAX_MESSAGE_BYTES - (1 << 20)


@dataclass(frozen=True, slots=True)
class _LiveCall:
    """A call that was admitted."""

    caller: Caller
    meter: CallMeter
    #: Takes what must be called at its end.
    on_exit: Callable[[Callable[[], None]], object]


class Embedder:
    """Serves a pooling model.

    Args:
        pooling: what the model does with its hidden states; None if it generates text.
        statistics: where the calls are counted.
    """

    def __init__(
        self,
        admission: Admission,
        model: ServedModel,
        inputs: PoolingInputs,
        batches: EngineBatches,
        pooling: PoolingModel | None,
        statistics: CallStatistics,
        tracer: Tracer = OFF,
    ) -> None:
        self._admission = admission
        self._model = model
        self._inputs = inputs
        self._batches = batches
        self._pooling = pooling
        self._statistics = statistics
        self._tracer = tracer

    async def embed(self, request: generation_pb2.EmbedRequest) -> generation_pb2.EmbedResponse:
        """Vectors of inputs. Raises TriptychError."""
        with self._admitted("embed", request) as call:
            params = common_pb2.PoolingParams(task=request.task or common_pb2.TASK_EMBED)
            if request.HasField("dimensions"):
                params.dimensions = request.dimensions
            if request.HasField("normalize"):
                params.normalize = request.normalize
            if params.task not in (common_pb2.TASK_EMBED, common_pb2.TASK_TOKEN_EMBED):
                raise InvalidRequestError("task must be EMBED or TOKEN_EMBED", field="task")
            self._check(request.model, params, request.inputs, "inputs")
            pooled = await self._pool(await self._read(request, call), params, call)
            # Ten thousand vectors take a tenth of a second.
            response = await asyncio.to_thread(_embed_response, pooled, packed=request.packed)
            response.request_id, response.model = request_id_var.get(), self._model.info.name
            return response

    async def classify(self, request: generation_pb2.ClassifyRequest) -> generation_pb2.ClassifyResponse:
        """Values of the model's labels for inputs. Raises TriptychError."""
        with self._admitted("classify", request) as call:
            params = common_pb2.PoolingParams(task=common_pb2.TASK_CLASSIFY)
            if request.HasField("activation"):
                params.activation = request.activation
            pooling = self._check(request.model, params, request.inputs, "inputs")
            pooled = await self._pool(await self._read(request, call), params, call)
            return generation_pb2.ClassifyResponse(
                request_id=request_id_var.get(),
                model=self._model.info.name,
                classifications=[generation_pb2.Classification(values=row) for row in pooled.values.tolist()],
                labels=pooling.labels,
                usage=pooled.usage,
            )

    async def score(self, request: generation_pb2.ScoreRequest) -> generation_pb2.ScoreResponse:
        """How well pairs fit together. Raises TriptychError."""
        with self._admitted("score", request) as call:
            params = common_pb2.PoolingParams(task=common_pb2.TASK_SCORE)
            if request.HasField("activation"):
                params.activation = request.activation
            pooling = self._check(request.model, params, request.documents, "documents")
            num_queries, num_documents = len(request.queries), len(request.documents)
            if num_queries not in (1, num_documents):
                raise InvalidRequestError(
                    f"queries must have one entry, or as many as documents ({num_documents}); it has {num_queries}",
                    field="queries",
                    limit=num_documents,
                    value=num_queries,
                )
            if pooling.kind == "embed":
                scores, usage = await self._cosines(request, call)
            else:
                scores, usage = await self._cross_encode(request, params, call)
            return generation_pb2.ScoreResponse(
                request_id=request_id_var.get(), model=self._model.info.name, scores=scores.tolist(), usage=usage
            )

    def _check(
        self, model: str, params: common_pb2.PoolingParams, inputs: Sequence[generation_pb2.EmbedInput], field: str
    ) -> PoolingModel:
        self._model.check_name(model)
        self._model.check_task(params.task)
        if self._pooling is None:
            raise UnimplementedError(f"{self._model.info.name} is served to generate text", field="model")
        check_pooling(params, self._pooling)
        if not inputs:
            raise InvalidRequestError(f"{field} must not be empty", field=field, limit=1, value=0)
        return self._pooling

    @contextlib.contextmanager
    def _admitted(self, task: str, request: Request) -> Iterator[_LiveCall]:
        """Trace and measure a call, and count it as live, within the block."""
        meter, model = CallMeter(self._statistics, task), self._model.info.name
        operation = "embeddings" if task == "embed" else task
        try:
            with (
                self._tracer.request(f"{operation} {model}", trace_of(request.context) or trace_var.get()) as span,
                contextlib.ExitStack() as place,
            ):
                if span is not None:
                    span.attributes |= {
                        names.GEN_AI_PROVIDER_NAME: names.PROVIDER,
                        names.GEN_AI_OPERATION_NAME: operation,
                        names.GEN_AI_REQUEST_MODEL: model,
                    }
                caller = Caller.of(request)
                place.enter_context(self._admission.admit(caller.principal.tenant))
                yield _LiveCall(caller, meter, place.callback)
        except BaseException as error:
            meter.failed(error)
            raise
        meter.ended("ok")

    async def _read(self, request: generation_pb2.EmbedRequest | generation_pb2.ClassifyRequest, call: _LiveCall) -> list[Input]:
        return await self._inputs.single(
            request.inputs,
            "inputs",
            self._model.info.max_model_len,
            call.caller,
            call.on_exit,
            truncate_to=request.truncate_to if request.HasField("truncate_to") else None,
            add_special_tokens=request.add_special_tokens if request.HasField("add_special_tokens") else True,
        )

    async def _cosines(self, request: generation_pb2.ScoreRequest, call: _LiveCall) -> tuple[np.ndarray, common_pb2.Usage]:
        caller, limit = call.caller, self._model.info.max_model_len
        truncate_to = request.truncate_to if request.HasField("truncate_to") else None
        queries = await self._inputs.single(request.queries, "queries", limit, caller, call.on_exit, truncate_to=truncate_to)
        documents = await self._inputs.single(request.documents, "documents", limit, caller, call.on_exit, truncate_to=truncate_to)
        params = common_pb2.PoolingParams(task=common_pb2.TASK_EMBED, normalize=True)
        pooled = await self._pool([*queries, *documents], params, call)
        of_queries, of_documents = np.split(pooled.values, [len(queries)])
        return (of_queries * of_documents).sum(-1), pooled.usage

    async def _cross_encode(
        self, request: generation_pb2.ScoreRequest, params: common_pb2.PoolingParams, call: _LiveCall
    ) -> tuple[np.ndarray, common_pb2.Usage]:
        queries, documents = _texts(request.queries, "queries"), _texts(request.documents, "documents")
        pairs = await self._inputs.pairs(
            queries if len(queries) == len(documents) else queries * len(documents),
            documents,
            "documents",
            self._model.info.max_model_len,
            truncate_to=request.truncate_to if request.HasField("truncate_to") else None,
        )
        pooled = await self._pool(pairs, params, call)
        return pooled.values[:, 0], pooled.usage

    async def _pool(self, inputs: Sequence[Input], params: common_pb2.PoolingParams, call: _LiveCall) -> Pooled:
        call.meter.preprocessed()
        self._check_answer_fits(inputs, params)
        pooled = await self._batches.pool(inputs, params, call.caller)
        call.meter.used(pooled.usage)
        return pooled

    def _check_answer_fits(self, inputs: Sequence[Input], params: common_pb2.PoolingParams) -> None:
        size = params.dimensions or (self._pooling.size if self._pooling is not None else 0)
        per_token = params.task == common_pb2.TASK_TOKEN_EMBED
        num_vectors = sum(len(one.token_ids) for one in inputs) if per_token else len(inputs)
        if num_vectors * size * 4 > _MAX_VECTOR_BYTES:
            raise InvalidRequestError(
                f"the answer would have {num_vectors * size * 4} bytes, at most {_MAX_VECTOR_BYTES} fit; send fewer inputs at once",
                field="inputs",
                limit=_MAX_VECTOR_BYTES,
                value=num_vectors * size * 4,
            )


def _texts(inputs: Sequence[generation_pb2.EmbedInput], field: str) -> list[str]:
    for index, one in enumerate(inputs):
        name = f"{field}[{index}]"
        if one.WhichOneof("input") != "text":
            raise InvalidRequestError(f"{name} must be a text: this model reads pairs of texts", field=name)
    return [one.text for one in inputs]


def _embed_response(pooled: Pooled, *, packed: bool) -> generation_pb2.EmbedResponse:
    response = generation_pb2.EmbedResponse(usage=pooled.usage)
    if packed:
        response.packed.CopyFrom(from_numpy(pooled.values))
        response.packed_vectors.extend(pooled.num_rows)
        return response
    ends = list(itertools.accumulate(pooled.num_rows))
    for end, count in zip(ends, pooled.num_rows, strict=True):
        response.embeddings.add(values=pooled.values[end - count : end].ravel().tolist(), num_vectors=count)
    return response
