"""Answers Embed, Score and Classify: checks, token ids, answers of engines in the form of the client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from triptych.errors import InvalidRequestError, UnimplementedError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.model.pooling import PoolingModel, check_pooling
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES
from triptych_common.rpc.principal import Principal
from triptych_common.rpc.security.roles import trusted_tenant
from triptych_common.rpc.tensors import from_numpy
from triptych_common.rpc.tracing import trace_of
from triptych_common.telemetry import attributes as names
from triptych_common.telemetry.logs import request_id_var
from triptych_common.telemetry.trace_context import trace_var
from triptych_common.telemetry.tracing import OFF, Tracer

from triptych_frontend.errors import refusal
from triptych_frontend.generation.admission import Admission
from triptych_frontend.generation.pooling.batches import EngineBatches, Pooled
from triptych_frontend.generation.pooling.inputs import Call, Input, PoolingInputs
from triptych_frontend.generation.statistics import CallMeter, CallStatistics
from triptych_frontend.served_model import ServedModel

Request = generation_pb2.EmbedRequest | generation_pb2.ScoreRequest | generation_pb2.ClassifyRequest
#: Room for everything but the vectors in a response.
_MAX_VECTOR_BYTES = MAX_MESSAGE_BYTES - (1 << 20)


@dataclass(eq=False, repr=False)
class Embedder:
    """Serves a pooling model.

    Args:
        pooling: what the model does with its hidden states; None if it generates text.
        statistics: where the calls are counted.
    """

    admission: Admission
    model: ServedModel
    inputs: PoolingInputs
    batches: EngineBatches
    pooling: PoolingModel | None
    statistics: CallStatistics
    tracer: Tracer = OFF

    async def embed(self, request: generation_pb2.EmbedRequest) -> generation_pb2.EmbedResponse:
        """Vectors of inputs. Raises TriptychError."""
        with self._admitted("embed", request) as call:
            task, size = request.task or common_pb2.TASK_EMBED, _given(request, "dimensions")
            params = common_pb2.PoolingParams(task=task, dimensions=size, normalize=_given(request, "normalize"))
            if params.task not in (common_pb2.TASK_EMBED, common_pb2.TASK_TOKEN_EMBED):
                raise refusal("task", "must be EMBED or TOKEN_EMBED")
            self._check(request.model, params, request.inputs, "inputs")
            pooled = await self._pool(await self._read(request, call), params, call)
            # Ten thousand vectors take a tenth of a second.
            response = await asyncio.to_thread(_embed_response, pooled, packed=request.packed)
            response.request_id, response.model = request_id_var.get(), self.model.info.name
            return response

    async def classify(self, request: generation_pb2.ClassifyRequest) -> generation_pb2.ClassifyResponse:
        """Values of the model's labels for inputs. Raises TriptychError."""
        with self._admitted("classify", request) as call:
            params = common_pb2.PoolingParams(task=common_pb2.TASK_CLASSIFY, activation=_given(request, "activation"))
            pooling = self._check(request.model, params, request.inputs, "inputs")
            pooled = await self._pool(await self._read(request, call), params, call)
            return generation_pb2.ClassifyResponse(
                request_id=request_id_var.get(),
                model=self.model.info.name,
                classifications=[generation_pb2.Classification(values=row) for row in pooled.values.tolist()],
                labels=pooling.labels,
                usage=pooled.usage,
            )

    async def score(self, request: generation_pb2.ScoreRequest) -> generation_pb2.ScoreResponse:
        """How well pairs fit together. Raises TriptychError."""
        with self._admitted("score", request) as call:
            params = common_pb2.PoolingParams(task=common_pb2.TASK_SCORE, activation=_given(request, "activation"))
            pooling = self._check(request.model, params, request.documents, "documents")
            num_queries, num_documents = len(request.queries), len(request.documents)
            if num_queries not in (1, num_documents):
                problem = f"must have one entry, or as many as documents ({num_documents}); it has {num_queries}"
                raise refusal("queries", problem, num_documents, num_queries)
            if pooling.kind == "embed":
                scores, usage = await self._cosines(request, call)
            else:
                scores, usage = await self._cross_encode(request, params, call)
            return generation_pb2.ScoreResponse(
                request_id=request_id_var.get(), model=self.model.info.name, scores=scores.tolist(), usage=usage
            )

    def _check(
        self, model: str, params: common_pb2.PoolingParams, inputs: Sequence[generation_pb2.EmbedInput], field: str
    ) -> PoolingModel:
        self.model.check_name(model)
        self.model.check_task(params.task)
        if self.pooling is None:
            raise UnimplementedError(f"{self.model.info.name} is served to generate text", field="model")
        check_pooling(params, self.pooling)
        if not inputs:
            raise refusal(field, "must not be empty", 1, 0)
        return self.pooling

    @contextlib.contextmanager
    def _admitted(self, task: str, request: Request) -> Iterator[Call]:
        """Trace and measure a call, and count it as live, within the block."""
        meter, model = CallMeter(self.statistics, task), self.model.info.name
        operation = "embeddings" if task == "embed" else task
        try:
            with (
                self.tracer.request(f"{operation} {model}", trace_of(request.context) or trace_var.get()) as span,
                contextlib.ExitStack() as place,
            ):
                if span is not None:
                    span.attributes |= {
                        names.GEN_AI_PROVIDER_NAME: names.PROVIDER,
                        names.GEN_AI_OPERATION_NAME: operation,
                        names.GEN_AI_REQUEST_MODEL: model,
                    }
                tenant = trusted_tenant(request.context if request.HasField("context") else None)
                place.enter_context(self.admission.admit(tenant))
                yield Call(Principal(tenant), request.cache_salt, request.priority, meter, place.callback)
        except BaseException as error:
            meter.failed(error)
            raise
        meter.ended("ok")

    async def _read(self, request: generation_pb2.EmbedRequest | generation_pb2.ClassifyRequest, call: Call) -> list[Input]:
        return await self.inputs.single(
            request.inputs,
            "inputs",
            call,
            truncate_to=_given(request, "truncate_to"),
            add_special_tokens=request.add_special_tokens if request.HasField("add_special_tokens") else True,
        )

    async def _cosines(self, request: generation_pb2.ScoreRequest, call: Call) -> tuple[np.ndarray, common_pb2.Usage]:
        truncate_to = _given(request, "truncate_to")
        queries = await self.inputs.single(request.queries, "queries", call, truncate_to=truncate_to)
        documents = await self.inputs.single(request.documents, "documents", call, truncate_to=truncate_to)
        params = common_pb2.PoolingParams(task=common_pb2.TASK_EMBED, normalize=True)
        pooled = await self._pool([*queries, *documents], params, call)
        of_queries, of_documents = np.split(pooled.values, [len(queries)])
        return (of_queries * of_documents).sum(-1), pooled.usage

    async def _cross_encode(
        self, request: generation_pb2.ScoreRequest, params: common_pb2.PoolingParams, call: Call
    ) -> tuple[np.ndarray, common_pb2.Usage]:
        queries, documents = _texts(request.queries, "queries"), _texts(request.documents, "documents")
        pairs = await self.inputs.pairs(
            queries if len(queries) == len(documents) else queries * len(documents),
            documents,
            "documents",
            truncate_to=_given(request, "truncate_to"),
        )
        pooled = await self._pool(pairs, params, call)
        return pooled.values[:, 0], pooled.usage

    async def _pool(self, inputs: Sequence[Input], params: common_pb2.PoolingParams, call: Call) -> Pooled:
        call.meter.preprocessed()
        self._check_answer_fits(inputs, params)
        pooled = await self.batches.pool(inputs, params, call)
        call.meter.used(pooled.usage)
        return pooled

    def _check_answer_fits(self, inputs: Sequence[Input], params: common_pb2.PoolingParams) -> None:
        size = params.dimensions or (self.pooling.size if self.pooling is not None else 0)
        per_token = params.task == common_pb2.TASK_TOKEN_EMBED
        num_vectors = sum(len(one.token_ids) for one in inputs) if per_token else len(inputs)
        if (num_bytes := num_vectors * size * 4) > _MAX_VECTOR_BYTES:
            message = f"the answer would have {num_bytes} bytes, at most {_MAX_VECTOR_BYTES} fit; send fewer inputs at once"
            raise InvalidRequestError(message, field="inputs", limit=_MAX_VECTOR_BYTES, value=num_bytes)


def _given(request: Request, name: str) -> Any:
    """A field of a request; None if the client did not set it."""
    return getattr(request, name) if request.HasField(name) else None


def _texts(inputs: Sequence[generation_pb2.EmbedInput], field: str) -> list[str]:
    for index, one in enumerate(inputs):
        name = f"{field}[{index}]"
        if one.WhichOneof("input") != "text":
            raise refusal(name, "must be a text: this model reads pairs of texts")
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
