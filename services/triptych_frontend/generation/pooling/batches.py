"""Sends inputs to engines that embed or classify, in batches."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass

import numpy as np
from triptych.errors import TriptychError
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.host.fair_share import ServiceShare
from triptych_common.rpc.tracing import usage_attributes
from triptych_common.telemetry import attributes as names
from triptych_common.telemetry.logs import request_id_var
from triptych_common.telemetry.span import SpanKind
from triptych_common.telemetry.tracing import OFF, Tracer, request_span_var

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.encoding import MediaEncoding
from triptych_frontend.engines.router import EngineRouter
from triptych_frontend.generation.pooling.inputs import Call, Input, below
from triptych_frontend.generation.sequences.media_call import MAX_RESUBMISSIONS, in_terms_of_the_request, is_about_embeddings
from triptych_frontend.prompt.preprocess import Prompt

log = logging.getLogger(__name__)
_Response = engine_pb2.EngineServiceEmbedResponse
#: Inputs of one engine call. Few enough that calls of several clients take turns.
_BATCH = 256
#: Engine calls in flight of one client's call, and of all. Together they stay below the number of requests that may wait.
_MAX_IN_FLIGHT, _MAX_IN_FLIGHT_OF_ALL = 2, 6
#: What is summed over calls.
_USAGE = ("prompt_tokens", "image_tokens", "audio_tokens", "video_tokens")
_NO_TENSOR = common_pb2.Tensor()


@dataclass(frozen=True, slots=True)
class Pooled:
    """The answers of engines, in the order of the inputs."""

    values: np.ndarray  # float32 [sum(num_rows), size]
    num_rows: list[int]
    usage: common_pb2.Usage


class EngineBatches:
    """Calls to engines, of which all clients together have only a few in flight. Tenants share them."""

    def __init__(self, engines: EngineRouter, encoders: EncoderClient, tracer: Tracer = OFF) -> None:
        self._engines = engines
        self._encoders = encoders
        self._tracer = tracer
        self._in_flight = ServiceShare(_MAX_IN_FLIGHT_OF_ALL)

    async def pool(self, inputs: Sequence[Input], params: common_pb2.PoolingParams, call: Call) -> Pooled:
        """Send inputs to engines, a few calls at a time. Each input with media has its own call. Raises TriptychError."""
        slots = asyncio.Semaphore(_MAX_IN_FLIGHT)
        tensors: list[common_pb2.Tensor] = [_NO_TENSOR] * len(inputs)
        usage = common_pb2.Usage()

        async def one(indices: Sequence[int]) -> None:
            some = [inputs[index] for index in indices]
            async with slots:
                response = await self._call(some, params, call)
            for index, tensor in zip(indices, response.embeddings, strict=True):
                tensors[index] = tensor
            for name in _USAGE:
                setattr(usage, name, getattr(usage, name) + getattr(response.usage, name))

        texts = [index for index, one_ in enumerate(inputs) if one_.prompt is None]
        calls = [texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH)]
        calls += [[index] for index, one_ in enumerate(inputs) if one_.prompt is not None]
        with self._tracer.part("engine", SpanKind.CLIENT):
            try:
                async with asyncio.TaskGroup() as group:
                    for indices in calls:
                        group.create_task(one(indices))
            except ExceptionGroup as errors:  # before Python 3.11.4, `except*` puts what is raised in it into a group again
                raise errors.exceptions[0] from None
        if (span := request_span_var.get()) is not None:
            span.attributes |= {names.NUM_INPUTS: len(inputs), **usage_attributes(usage)}
        return _joined(tensors, usage)

    async def _call(self, inputs: Sequence[Input], params: common_pb2.PoolingParams, call: Call) -> _Response:
        seconds = [one.second_text_start for one in inputs]
        request = engine_pb2.EngineServiceEmbedRequest(
            requests=[self._engine_request(one.token_ids, call) for one in inputs],
            pooling=params,
            second_text_starts=seconds if any(seconds) else (),
        )
        prompt = inputs[0].prompt
        if prompt is None:
            async with self._in_flight.held(call.principal.tenant):
                return await self._engines.embed(request, request_id_var.get())
        try:
            # It may wait for encoders, and it is only one request, so texts of other calls do not wait for it.
            return await _embed_with_media(self._engines, self._encoders, prompt, request, request_id_var.get())
        except TriptychError as error:
            raise below(inputs[0].field, error) if error.field.startswith("messages[") else error from error

    @staticmethod
    def _engine_request(token_ids: list[int], call: Call) -> engine_pb2.EngineRequest:
        request_id = f"{request_id_var.get()}-{secrets.token_hex(8)}"
        # Without the salt: an engine that embeds has no prefix cache, and the keys of media contain it.
        return engine_pb2.EngineRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            priority=call.priority,
            # The trace is in the call's metadata.
            context=common_pb2.CallContext(tenant=call.principal.tenant),
        )


def _joined(tensors: list[common_pb2.Tensor], usage: common_pb2.Usage) -> Pooled:
    num_rows = [tensor.shape[0] if len(tensor.shape) == 2 else 1 for tensor in tensors]
    values = np.frombuffer(b"".join(tensor.inline for tensor in tensors), np.float32).reshape(sum(num_rows), -1)
    return Pooled(values, num_rows, usage)


async def _embed_with_media(
    engines: EngineRouter,
    encoders: EncoderClient,
    prompt: Prompt,
    request: engine_pb2.EngineServiceEmbedRequest,
    request_id: str,
) -> _Response:
    """The engine's answer for one prompt with media. It goes to the engine while its items are still being encoded, and again if
    embeddings are lost, as in `MediaCall`.

    Args:
        request: a call with this prompt alone, without its media.

    Raises:
        TriptychError: an error about an item has the item's field.
    """
    encoding = MediaEncoding(encoders, prompt.media)
    (only,) = request.requests
    only.placeholders.extend(prompt.placeholders)
    try:
        await encoding.announced()
        for num_left in reversed(range(MAX_RESUBMISSIONS + 1)):
            del only.media[:]
            only.media.extend(encoding.refs)
            try:
                return await _unless_encoding_fails(engines.embed(request, request_id), encoding)
            except TriptychError as error:
                if not is_about_embeddings(error):
                    raise
                if not num_left:
                    encoders.counts["failed"] += 1
                    raise
                log.warning("the engine did not get embeddings: %s", error.message)
            encoding.lose()
            await encoding.wait()
            encoders.counts["resubmitted"] += 1
        raise AssertionError("unreachable")
    except TriptychError as error:
        raise in_terms_of_the_request(error, prompt.media) from error
    finally:
        encoding.end()


async def _unless_encoding_fails(call: Coroutine[None, None, _Response], encoding: MediaEncoding) -> _Response:
    """The result of the call, which ends with the encoders' error if an item cannot be encoded."""
    computing, waiting = asyncio.create_task(call), asyncio.create_task(encoding.wait())
    try:
        await asyncio.wait((computing, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not computing.done():
            waiting.result()
        return await computing
    finally:
        for task in (computing, waiting):
            task.cancel()
        await asyncio.gather(computing, waiting, return_exceptions=True)
