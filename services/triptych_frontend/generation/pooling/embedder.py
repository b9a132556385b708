"""Answers Embed, Score and Classify: checks, token ids, and calls to engines in batches."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from triptych.errors import InvalidRequestError, TriptychError, UnimplementedError
from triptych.v1 import common_pb2, engine_pb2, generation_pb2
from triptych_common.model.pooling import PoolingModel, check_pooling
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES
from triptych_common.rpc.tensors import from_numpy
from triptych_common.telemetry.logs import request_id_var

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.engines.router import EngineRouter
from triptych_frontend.generation.admission import Admission
from triptych_frontend.generation.pooling.inputs import Caller, Input, PoolingInputs, below
from triptych_frontend.generation.pooling.media import embed_with_media
from triptych_frontend.served_model import ServedModel

#: Inputs of one engine call. Few enough that calls of several clients take turns.
_BATCH = 256
#: Engine calls in flight of one client's call, and of all. Together they stay below the number of requests that may wait.
_MAX_IN_FLIGHT, _MAX_IN_FLIGHT_OF_ALL = 2, 6
#: What is summed over calls.
_USAGE = ("prompt_tokens", "image_tokens", "audio_tokens", "video_tokens")
_NO_TENSOR = common_pb2.Tensor()
OnExit = Callable[[Callable[[], None]], object]
#: Room for everything but the vectors in a response.
_MAX_VECTOR_BYTES = MAX_MESSAGE_BYTES - (1 << 20)


@dataclass(frozen=True, slots=True)
class Pooled:
    """The answers of engines, in the order of the inputs."""

    values: np.ndarray  # float32 [sum(num_rows), size]
    num_rows: list[int]
    usage: common_pb2.Usage


class Embedder:
    """Serves a pooling model.

    Args:
        pooling: what the model does with its hidden states; None if it generates text.
    """

    def __init__(
        self,
        admission: Admission,
        model: ServedModel,
        inputs: PoolingInputs,
        engines: EngineRouter,
        encoders: EncoderClient,
        pooling: PoolingModel | None,
    ) -> None:
        self._admission = admission
        self._model = model
        self._inputs = inputs
        self._engines = engines
        self._encoders = encoders
        self._pooling = pooling
        self._in_flight = asyncio.Semaphore(_MAX_IN_FLIGHT_OF_ALL)

    async def embed(self, request: generation_pb2.EmbedRequest) -> generation_pb2.EmbedResponse:
        """Vectors of inputs. Raises TriptychError."""
        with self._admitted() as on_exit:
            params = common_pb2.PoolingParams(task=request.task or common_pb2.TASK_EMBED)
            if request.HasField("dimensions"):
                params.dimensions = request.dimensions
            if request.HasField("normalize"):
                params.normalize = request.normalize
            if params.task not in (common_pb2.TASK_EMBED, common_pb2.TASK_TOKEN_EMBED):
                raise InvalidRequestError("task must be EMBED or TOKEN_EMBED", field="task")
            self._check(request.model, params, request.inputs, "inputs")
            pooled = await self._pool(await self._read(request, on_exit), params, Caller.of(request))
            # Ten thousand vectors take a tenth of a second.
            response = await asyncio.to_thread(_embed_response, pooled, packed=request.packed)
            response.request_id, response.model = request_id_var.get(), self._model.info.name
            return response

    async def classify(self, request: generation_pb2.ClassifyRequest) -> generation_pb2.ClassifyResponse:
        """Values of the model's labels for inputs. Raises TriptychError."""
        with self._admitted() as on_exit:
            params = common_pb2.PoolingParams(task=common_pb2.TASK_CLASSIFY)
            if request.HasField("activation"):
                params.activation = request.activation
            pooling = self._check(request.model, params, request.inputs, "inputs")
            pooled = await self._pool(await self._read(request, on_exit), params, Caller.of(request))
            return generation_pb2.ClassifyResponse(
                request_id=request_id_var.get(),
                model=self._model.info.name,
                classifications=[generation_pb2.Classification(values=row) for row in pooled.values.tolist()],
                labels=pooling.labels,
                usage=pooled.usage,
            )

    async def score(self, request: generation_pb2.ScoreRequest) -> generation_pb2.ScoreResponse:
        """How well pairs fit together. Raises TriptychError."""
        with self._admitted() as on_exit:
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
                scores, usage = await self._cosines(request, on_exit)
            else:
                scores, usage = await self._cross_encode(request, params)
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
    def _admitted(self) -> Iterator[OnExit]:
        """Count a call as live within the block. Yields what takes further things to be called at its end."""
        with contextlib.ExitStack() as place:
            place.enter_context(self._admission.admit())
            yield place.callback

    async def _read(self, request: generation_pb2.EmbedRequest | generation_pb2.ClassifyRequest, on_exit: OnExit) -> list[Input]:
        return await self._inputs.single(
            request.inputs,
            "inputs",
            self._model.info.max_model_len,
            Caller.of(request),
            on_exit,
            truncate_to=request.truncate_to if request.HasField("truncate_to") else None,
            add_special_tokens=request.add_special_tokens if request.HasField("add_special_tokens") else True,
        )

    async def _cosines(self, request: generation_pb2.ScoreRequest, on_exit: OnExit) -> tuple[np.ndarray, common_pb2.Usage]:
        caller, limit = Caller.of(request), self._model.info.max_model_len
        truncate_to = request.truncate_to if request.HasField("truncate_to") else None
        queries = await self._inputs.single(request.queries, "queries", limit, caller, on_exit, truncate_to=truncate_to)
        documents = await self._inputs.single(request.documents, "documents", limit, caller, on_exit, truncate_to=truncate_to)
        params = common_pb2.PoolingParams(task=common_pb2.TASK_EMBED, normalize=True)
        pooled = await self._pool([*queries, *documents], params, caller)
        of_queries, of_documents = np.split(pooled.values, [len(queries)])
        return (of_queries * of_documents).sum(-1), pooled.usage

    async def _cross_encode(
        self, request: generation_pb2.ScoreRequest, params: common_pb2.PoolingParams
    ) -> tuple[np.ndarray, common_pb2.Usage]:
        queries, documents = _texts(request.queries, "queries"), _texts(request.documents, "documents")
        pairs = await self._inputs.pairs(
            queries if len(queries) == len(documents) else queries * len(documents),
            documents,
            "documents",
            self._model.info.max_model_len,
            truncate_to=request.truncate_to if request.HasField("truncate_to") else None,
        )
        pooled = await self._pool(pairs, params, Caller.of(request))
        return pooled.values[:, 0], pooled.usage

    async def _pool(self, inputs: Sequence[Input], params: common_pb2.PoolingParams, caller: Caller) -> Pooled:
        """Send inputs to engines, a few calls at a time. Each input with media has its own call."""
        self._check_answer_fits(inputs, params)
        slots = asyncio.Semaphore(_MAX_IN_FLIGHT)
        tensors: list[common_pb2.Tensor] = [_NO_TENSOR] * len(inputs)
        usage = common_pb2.Usage()

        async def one(indices: Sequence[int]) -> None:
            some = [inputs[index] for index in indices]
            async with slots:
                response = await self._call(some, params, caller)
            for index, tensor in zip(indices, response.embeddings, strict=True):
                tensors[index] = tensor
            for name in _USAGE:
                setattr(usage, name, getattr(usage, name) + getattr(response.usage, name))

        texts = [index for index, one_ in enumerate(inputs) if one_.prompt is None]
        calls = [texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH)]
        calls += [[index] for index, one_ in enumerate(inputs) if one_.prompt is not None]
        try:
            async with asyncio.TaskGroup() as group:
                for indices in calls:
                    group.create_task(one(indices))
        except* Exception as errors:
            raise errors.exceptions[0] from None
        return _joined(tensors, usage)

    async def _call(
        self, inputs: Sequence[Input], params: common_pb2.PoolingParams, caller: Caller
    ) -> engine_pb2.EngineServiceEmbedResponse:
        seconds = [one.second_text_start for one in inputs]
        request = engine_pb2.EngineServiceEmbedRequest(
            requests=[self._engine_request(one.token_ids, caller) for one in inputs],
            pooling=params,
            second_text_starts=seconds if any(seconds) else (),
        )
        prompt = inputs[0].prompt
        if prompt is None:
            async with self._in_flight:
                return await self._engines.embed(request, request_id_var.get())
        try:
            # It may wait for encoders, and it is only one request, so texts of other calls do not wait for it.
            return await embed_with_media(self._engines, self._encoders, prompt, request, request_id_var.get())
        except TriptychError as error:
            raise below(inputs[0].field, error) if error.field.startswith("messages[") else error from error

    @staticmethod
    def _engine_request(token_ids: list[int], caller: Caller) -> engine_pb2.EngineRequest:
        request_id = f"{request_id_var.get()}-{secrets.token_hex(8)}"
        # Without the salt: an engine that embeds has no prefix cache, and the keys of media contain it.
        return engine_pb2.EngineRequest(
            request_id=request_id, prompt_token_ids=token_ids, priority=caller.priority, context=caller.context
        )

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


def _joined(tensors: list[common_pb2.Tensor], usage: common_pb2.Usage) -> Pooled:
    num_rows = [tensor.shape[0] if len(tensor.shape) == 2 else 1 for tensor in tensors]
    values = np.frombuffer(b"".join(tensor.inline for tensor in tensors), np.float32).reshape(sum(num_rows), -1)
    return Pooled(values, num_rows, usage)
