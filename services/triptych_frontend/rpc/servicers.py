"""The gRPC edge of the frontend: generation, preprocessing, detokenization."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import grpc
from triptych_common.pb import (
    detokenize_pb2,
    detokenize_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    preprocess_pb2,
    preprocess_pb2_grpc,
)
from triptych_common.rpc.errors import InvalidRequestError, ServiceUnavailableError
from triptych_common.telemetry.logs import request_id_var

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.encoding import media_ref
from triptych_frontend.generation.admission import Admission
from triptych_frontend.generation.generator import Generator, Request
from triptych_frontend.prompt.preprocess import Preprocessor
from triptych_frontend.rpc.session import GenerationSession
from triptych_frontend.served_model import ServedModel
from triptych_frontend.tokens.detokenizer import IncrementalDetokenizer
from triptych_frontend.tokens.tokenizer import Tokenizer

Response = TypeVar("Response", generation_pb2.ChatResponse, generation_pb2.CompleteResponse)
_MEDIA_TRAILER = "triptych-media-bin"
#: Metadata of more than 8 KiB make calls fail, and others add theirs.
_MAX_TRAILER_BYTES = 4096


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Chat, Complete, Session, ListModels."""

    def __init__(self, model: ServedModel, generator: Generator) -> None:
        self._model = model
        self._generator = generator
        self._sessions: set[GenerationSession] = set()
        self._refusal: str | None = None

    def refuse(self, reason: str) -> None:
        """Take no more sessions, and end those that are open, each after its last call, so that clients look elsewhere."""
        self._refusal = reason
        for session in self._sessions:
            session.end_when_idle()

    def accept(self) -> None:
        """Take sessions again after `refuse`."""
        self._refusal = None

    async def Chat(
        self, request: generation_pb2.ChatRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generation_pb2.ChatResponse]:
        async for response in self._stream(request, context, generation_pb2.ChatResponse):
            yield response

    async def Complete(
        self, request: generation_pb2.CompleteRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generation_pb2.CompleteResponse]:
        async for response in self._stream(request, context, generation_pb2.CompleteResponse):
            yield response

    async def _stream(
        self, request: Request, context: grpc.aio.ServicerContext, respond: type[Response]
    ) -> AsyncIterator[Response]:
        news = asyncio.Event()
        generation = await self._generator.start(request, news.set, keeps_request=True)
        # A client that leaves while a response is being written cancels the writer, not this generator.
        context.add_done_callback(lambda _: generation.close())  # type: ignore[arg-type]  # the stubs ask for a class of their own
        request_id = request_id_var.get()
        try:
            is_last = False
            while not is_last:
                await news.wait()
                news.clear()
                new = generation.take()
                if new is None:
                    continue
                is_last = new.HasField("usage")
                if new.choices:
                    response = respond(request_id=request_id, model=self._model.info.name, choices=new.choices)
                    if is_last:
                        response.usage.CopyFrom(new.usage)
                        response.timings.CopyFrom(new.timings)
                    if isinstance(response, generation_pb2.ChatResponse) and new.media:
                        response.media.extend(new.media)
                        _set_media_trailers(context, new.media)
                    yield response
                if generation.error is not None:
                    raise generation.error
        finally:
            generation.close()

    async def Session(
        self,
        request_iterator: AsyncIterator[generation_pb2.GenerationServiceSessionRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[generation_pb2.GenerationServiceSessionResponse]:
        if self._refusal is not None:
            raise ServiceUnavailableError(self._refusal, retry_after_s=1.0)
        session = GenerationSession(self._generator)
        self._sessions.add(session)
        try:
            async with contextlib.aclosing(session.serve(request_iterator)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._sessions.discard(session)

    async def ListModels(
        self, request: generation_pb2.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.ListModelsResponse:
        return generation_pb2.ListModelsResponse(models=[self._model.info])


def _set_media_trailers(context: grpc.aio.ServicerContext, reports: Sequence[generation_pb2.MediaReport]) -> None:
    if sum(report.ByteSize() for report in reports) <= _MAX_TRAILER_BYTES:
        context.set_trailing_metadata(tuple((_MEDIA_TRAILER, report.SerializeToString()) for report in reports))


class PreprocessServicer(preprocess_pb2_grpc.PreprocessServiceServicer):
    """Preprocess, Tokenize."""

    def __init__(self, admission: Admission, model: ServedModel, preprocessor: Preprocessor, encoders: EncoderClient) -> None:
        self._admission = admission
        self._model = model
        self._preprocessor = preprocessor
        self._encoders = encoders

    async def Preprocess(
        self, request: preprocess_pb2.PreprocessRequest, context: grpc.aio.ServicerContext
    ) -> preprocess_pb2.PreprocessResponse:
        with self._admission.admit():
            kind = request.WhichOneof("input")
            if kind is None:
                raise InvalidRequestError("an input is needed: chat or complete", field="input")
            if kind == "chat":
                self._model.check_name(request.chat.model)
                prompt = await self._preprocessor.chat(request.chat)
            else:
                self._model.check_name(request.complete.model)
                prompt = await self._preprocessor.complete(request.complete)
            prompt.release()
            return preprocess_pb2.PreprocessResponse(
                prompt=prompt.text,
                token_ids=prompt.token_ids,
                placeholders=prompt.placeholders,
                # Nothing is encoded, so there are no leases; the address is that of the encoder which each key belongs to.
                media=[media_ref(item, self._encoders.ranked(item.key)[0].address) for item in prompt.media],
                max_model_len=self._model.info.max_model_len,
            )

    async def Tokenize(
        self, request: preprocess_pb2.TokenizeRequest, context: grpc.aio.ServicerContext
    ) -> preprocess_pb2.TokenizeResponse:
        with self._admission.admit():
            token_ids, tokens = await self._preprocessor.tokenize(
                request.text,
                add_special_tokens=request.add_special_tokens if request.HasField("add_special_tokens") else True,
                parse_special_tokens=request.parse_special_tokens if request.HasField("parse_special_tokens") else True,
            )
            return preprocess_pb2.TokenizeResponse(token_ids=token_ids, tokens=tokens, max_model_len=self._model.info.max_model_len)


class DetokenizeServicer(detokenize_pb2_grpc.DetokenizeServiceServicer):
    """Detokenize, DetokenizeStream."""

    def __init__(self, admission: Admission, tokenizer: Tokenizer, preprocessor: Preprocessor) -> None:
        self._admission = admission
        self._tokenizer = tokenizer
        self._preprocessor = preprocessor

    async def Detokenize(
        self, request: detokenize_pb2.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> detokenize_pb2.DetokenizeResponse:
        with self._admission.admit():
            text = await self._preprocessor.detokenize(request.token_ids, request.skip_special_tokens)
            return detokenize_pb2.DetokenizeResponse(text=text)

    async def DetokenizeStream(
        self, request_iterator: AsyncIterator[detokenize_pb2.DetokenizeStreamRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[detokenize_pb2.DetokenizeStreamResponse]:
        with self._admission.admit():
            stream: IncrementalDetokenizer | None = None
            async for request in request_iterator:
                if stream is None:
                    stream = IncrementalDetokenizer(self._tokenizer, skip_special_tokens=request.skip_special_tokens)
                text = await self._preprocessor.detokenize_next(stream, request.token_ids)
                yield detokenize_pb2.DetokenizeStreamResponse(text=text)
            yield detokenize_pb2.DetokenizeStreamResponse(text=stream.flush() if stream is not None else "")
