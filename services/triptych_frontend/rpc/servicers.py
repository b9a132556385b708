"""The gRPC servicers of the frontend: generation, preprocessing, detokenization."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import grpc
from triptych.errors import InvalidRequestError, ServiceUnavailableError
from triptych.v1 import common_pb2, detokenize_pb2, generation_pb2, preprocess_pb2
from triptych_common.media.uploads import Uploads
from triptych_common.rpc.generation import GenerationCalls, Request, Responses, StageServicer
from triptych_common.rpc.principal import Principal
from triptych_common.rpc.security.roles import trusted_context, trusted_tenant

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.encoding import media_ref
from triptych_frontend.generation.admission import Admission
from triptych_frontend.generation.generator import Generator
from triptych_frontend.generation.pooling.embedder import Embedder
from triptych_frontend.prompt.preprocess import Preprocessor
from triptych_frontend.rpc.session import GenerationSession
from triptych_frontend.served_model import ServedModel
from triptych_frontend.tokens.detokenizer import IncrementalDetokenizer

_Context: TypeAlias = grpc.aio.ServicerContext


@dataclass(eq=False, repr=False)
class GenerationServicer(GenerationCalls):
    """Chat and Complete, whole and streamed, Session, Embed, Score, Classify, UploadMedia, ListModels, Describe, GetLoad.

    Args:
        instance: returns the identity of this frontend.
        load: returns the load of this frontend.
    """

    model: ServedModel
    generator: Generator
    embedder: Embedder
    uploads: Uploads
    instance: Callable[[], common_pb2.Instance]
    load: Callable[[], Awaitable[generation_pb2.GetLoadResponse]]
    _sessions: set[GenerationSession] = field(default_factory=set, init=False)
    _refusal: str | None = field(default=None, init=False)

    def refuse(self, reason: str) -> None:
        """Accept no more sessions and uploads, and end each open session after its last call. Clients then use another frontend."""
        self._refusal = reason
        for session in self._sessions:
            session.go_away()

    def accept(self) -> None:
        """Accept sessions and uploads again, after `refuse`."""
        self._refusal = None

    def _check_accepts(self) -> None:
        if self._refusal is not None:
            raise ServiceUnavailableError(self._refusal, retry_after_s=1.0)

    def model_name(self, request: Request) -> str:
        return request.model or self.model.info.name

    async def responses(self, request: Request, context: _Context, *, is_final_only: bool, is_stream: bool) -> Responses:
        news = asyncio.Event()
        generation = await self.generator.start(
            request, news.set, is_final_only=is_final_only, context=trusted_context(None), keeps_request=True
        )
        # If a client leaves while a response is being written, gRPC cancels the writer, but not this generator.
        context.add_done_callback(lambda _: generation.close())  # type: ignore[arg-type]  # the stubs expect a class of their own
        try:
            is_last = False
            while not is_last:
                await news.wait()
                news.clear()
                new = generation.take()
                if new is None:
                    continue
                is_last = new.HasField("usage")
                if new.choices or is_last:
                    yield new
                if generation.error is not None:
                    raise generation.error
        finally:
            generation.close()

    async def Session(
        self, request_iterator: AsyncIterator[generation_pb2.GenerationServiceSessionRequest], context: _Context
    ) -> AsyncIterator[generation_pb2.GenerationServiceSessionResponse]:
        self._check_accepts()
        session = GenerationSession(self.generator, self.instance())
        self._sessions.add(session)
        try:
            async with contextlib.aclosing(session.serve(request_iterator)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._sessions.discard(session)

    async def ListModels(self, request: generation_pb2.ListModelsRequest, context: _Context) -> generation_pb2.ListModelsResponse:
        return generation_pb2.ListModelsResponse(models=self.model.listed())

    async def Describe(
        self, request: generation_pb2.GenerationServiceDescribeRequest, context: _Context
    ) -> generation_pb2.GenerationServiceDescribeResponse:
        return generation_pb2.GenerationServiceDescribeResponse(instance=self.instance(), models=self.model.listed())

    async def GetLoad(self, request: generation_pb2.GetLoadRequest, context: _Context) -> generation_pb2.GetLoadResponse:
        return await self.load()

    async def UploadMedia(
        self, request_iterator: AsyncIterator[generation_pb2.UploadMediaRequest], context: _Context
    ) -> generation_pb2.UploadMediaResponse:
        self._check_accepts()
        return await self.uploads.receive(request_iterator)

    async def Embed(self, request: generation_pb2.EmbedRequest, context: _Context) -> generation_pb2.EmbedResponse:
        return await self.embedder.embed(request)

    async def Score(self, request: generation_pb2.ScoreRequest, context: _Context) -> generation_pb2.ScoreResponse:
        return await self.embedder.score(request)

    async def Classify(self, request: generation_pb2.ClassifyRequest, context: _Context) -> generation_pb2.ClassifyResponse:
        return await self.embedder.classify(request)


class FrontendStages(StageServicer):
    """Single stages of a call, which the frontend does itself."""

    def __init__(self, admission: Admission, model: ServedModel, preprocessor: Preprocessor, encoders: EncoderClient) -> None:
        self._admission = admission
        self._model = model
        self._preprocessor = preprocessor
        self._encoders = encoders

    async def Preprocess(self, request: preprocess_pb2.PreprocessRequest, context: _Context) -> preprocess_pb2.PreprocessResponse:
        principal = Principal(trusted_tenant(request.context))
        with self._admission.admit(principal.tenant):
            kind = request.WhichOneof("input")
            if kind is None:
                raise InvalidRequestError("an input is needed: chat or complete", field="input")
            if kind == "chat":
                self._model.adapter_of(request.chat.model)
                prompt = await self._preprocessor.chat(request.chat, principal, max_model_len=self._model.info.max_model_len)
            else:
                self._model.adapter_of(request.complete.model)
                prompt = await self._preprocessor.complete(request.complete, principal)
            prompt.release()
            return preprocess_pb2.PreprocessResponse(
                prompt=prompt.text,
                token_ids=prompt.token_ids,
                placeholders=prompt.placeholders,
                # Nothing is encoded, so there are no leases. Each item names the encoder that its key belongs to.
                media=[media_ref(item, self._encoders.encoder_id_of(item.key)) for item in prompt.media],
                max_model_len=self._model.info.max_model_len,
            )

    async def Tokenize(self, request: preprocess_pb2.TokenizeRequest, context: _Context) -> preprocess_pb2.TokenizeResponse:
        self._model.adapter_of(request.model)
        with self._admission.admit():
            token_ids, tokens = await self._preprocessor.tokenize(
                request.text,
                add_special_tokens=request.add_special_tokens if request.HasField("add_special_tokens") else True,
                parse_special_tokens=request.parse_special_tokens if request.HasField("parse_special_tokens") else True,
            )
            return preprocess_pb2.TokenizeResponse(token_ids=token_ids, tokens=tokens, max_model_len=self._model.info.max_model_len)

    async def Detokenize(self, request: detokenize_pb2.DetokenizeRequest, context: _Context) -> detokenize_pb2.DetokenizeResponse:
        self._model.adapter_of(request.model)
        with self._admission.admit():
            text = await self._preprocessor.detokenize(request.token_ids, _skips_special_tokens(request))
            return detokenize_pb2.DetokenizeResponse(text=text)

    async def DetokenizeStream(
        self, request_iterator: AsyncIterator[detokenize_pb2.DetokenizeStreamRequest], context: _Context
    ) -> AsyncIterator[detokenize_pb2.DetokenizeStreamResponse]:
        with self._admission.admit():
            stream: IncrementalDetokenizer | None = None
            async for request in request_iterator:
                if stream is None:
                    self._model.adapter_of(request.model)
                    stream = IncrementalDetokenizer(
                        self._preprocessor.tokenizer, skip_special_tokens=_skips_special_tokens(request)
                    )
                text = await self._preprocessor.detokenize_next(stream, request.token_ids)
                yield detokenize_pb2.DetokenizeStreamResponse(text=text)
            yield detokenize_pb2.DetokenizeStreamResponse(text=stream.flush() if stream is not None else "")


def _skips_special_tokens(request: detokenize_pb2.DetokenizeRequest | detokenize_pb2.DetokenizeStreamRequest) -> bool:
    return request.skip_special_tokens if request.HasField("skip_special_tokens") else True
