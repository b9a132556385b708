"""The services at the gateway: each call goes to a frontend of its model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import grpc
from triptych.errors import InvalidRequestError, TriptychError, UnimplementedError
from triptych.v1 import common_pb2, detokenize_pb2, generation_pb2, preprocess_pb2
from triptych_common.media.uploads import Uploads
from triptych_common.rpc.generation import GenerationCalls, Request, Responses, StageServicer

from triptych_gateway.frontends.calls import FrontendCall, MediaFile
from triptych_gateway.frontends.client import CLASSIFY, DETOKENIZE, EMBED, PREPROCESS, SCORE, TOKENIZE, Method, model_of
from triptych_gateway.frontends.loads import merged_loads
from triptych_gateway.metrics import GenerationMeter
from triptych_gateway.rpc.call import Call, call_var
from triptych_gateway.state import Gateway, call_context_of
from triptych_gateway.tracing import note_call
from triptych_gateway.wire.cost import Cost

Context = grpc.aio.ServicerContext
Response = TypeVar("Response")


class GatewayServicer(GenerationCalls, StageServicer):
    """All methods but Session, which carries the calls of a gateway.

    Args:
        instance: the identity of this gateway.
    """

    def __init__(self, gateway: Gateway, instance: common_pb2.Instance) -> None:
        self._gateway, self._instance = gateway, instance
        self.uploads = Uploads(gateway.bodies.taken, lambda _: call_var.get().tenant, gateway.settings.max_body_bytes)

    def model_name(self, request: Request) -> str:
        return request.model or next(iter(self._gateway.served_models), "")

    async def responses(self, request: Request, context: Context, *, is_final_only: bool, is_stream: bool) -> Responses:
        call, gateway = call_var.get(), self._gateway
        mode = generation_pb2.OUTPUT_MODE_FINAL if is_final_only else generation_pb2.OUTPUT_MODE_DELTA
        own = FrontendCall(request, call.record.request_id, mode)
        call.use_model(request.model)
        await call.grant.admit([own])
        files, uploaded = self._files_of(call)
        own.files = [MediaFile(item, content) for item, content in files]
        operation = "chat" if isinstance(request, generation_pb2.ChatRequest) else "text_completion"
        note_call(operation, request.model, max(1, request.options.n), is_stream=is_stream)
        meter, cost, ends = GenerationMeter(gateway.metrics, call.record, call.method), Cost(), list[common_pb2.FinishReason]()
        responses = gateway.router.generate([own], call_context_of(call.tenant), call.release)
        del own, files  # the router keeps the files until a frontend has answered, and not longer
        call.media.clear()
        async with aclosing(responses):
            async for batch in responses:
                while uploaded:  # a call that no frontend took does not use them up
                    self.uploads.drop(uploaded.pop())
                for _, response in batch:
                    for delta in response.choices:
                        if meter.tally is not None:
                            meter.tally.add(0, delta)
                        if delta.finish_reason:
                            ends.append(delta.finish_reason)
                    cost.add(response)
                    if is_stream:
                        meter.event()
                    yield response
        meter.finished(cost, ends)

    async def Embed(self, request: generation_pb2.EmbedRequest, context: Context) -> generation_pb2.EmbedResponse:
        return await self._ask(EMBED, request)

    async def Score(self, request: generation_pb2.ScoreRequest, context: Context) -> generation_pb2.ScoreResponse:
        return await self._ask(SCORE, request)

    async def Classify(self, request: generation_pb2.ClassifyRequest, context: Context) -> generation_pb2.ClassifyResponse:
        return await self._ask(CLASSIFY, request)

    async def Preprocess(self, request: preprocess_pb2.PreprocessRequest, context: Context) -> preprocess_pb2.PreprocessResponse:
        if request.WhichOneof("input") is None:
            raise InvalidRequestError("an input is needed: chat or complete", field="input")
        return await self._ask(PREPROCESS, request)

    async def Tokenize(self, request: preprocess_pb2.TokenizeRequest, context: Context) -> preprocess_pb2.TokenizeResponse:
        return await self._ask(TOKENIZE, request)

    async def Detokenize(self, request: detokenize_pb2.DetokenizeRequest, context: Context) -> detokenize_pb2.DetokenizeResponse:
        return await self._ask(DETOKENIZE, request)

    async def _ask(self, method: Method[Response], request: Any) -> Response:
        """The answer of a frontend to a unary call."""
        call, gateway = call_var.get(), self._gateway
        model = model_of(request)
        call.use_model(model)
        if "context" in request.DESCRIPTOR.fields_by_name:
            # What the client says of itself does not count.
            request.context.CopyFrom(call_context_of(call.tenant))
        if method.operation:
            note_call(method.operation, model)
            await call.grant.admit_pooling(request)
        self._put_files(call)
        response: Any = await gateway.frontend.call(method, request, call.record.request_id)
        if method.operation:
            gateway.metrics.pooled(call.record, response.usage)
        return response

    def _put_files(self, call: Call) -> None:
        """Put the files of a call into its request, uploaded ones too, where a frontend has no other way to take them."""
        files, uploaded = self._files_of(call)
        for item, content in files:
            item.data = content
        # Until then they are counted where they were uploaded, and a call that failed can be made again.
        call.on_success += [partial(self.uploads.drop, upload_id) for upload_id in uploaded]

    def _files_of(self, call: Call) -> tuple[list[tuple[common_pb2.MediaItem, bytes]], list[str]]:
        """The files of a call, each with its item, and the ids of those that were uploaded before."""
        files: list[tuple[common_pb2.MediaItem, bytes]] = []
        uploaded: list[str] = []
        for path, item, content in call.media:
            if item.HasField("upload_id"):
                files.append((item, self.uploads.look(item.upload_id, call.tenant, path)))
                uploaded.append(item.upload_id)
            elif content is not None:
                files.append((item, content))
        return files, uploaded

    async def UploadMedia(
        self, request_iterator: AsyncIterator[generation_pb2.UploadMediaRequest], context: Context
    ) -> generation_pb2.UploadMediaResponse:
        return await self.uploads.receive(request_iterator)

    async def Session(
        self, request_iterator: AsyncIterator[generation_pb2.GenerationServiceSessionRequest], context: Context
    ) -> AsyncIterator[generation_pb2.GenerationServiceSessionResponse]:
        raise UnimplementedError("Session is between a gateway and its frontends; call ChatStream or CompleteStream here")
        yield

    async def DetokenizeStream(
        self, request_iterator: AsyncIterator[detokenize_pb2.DetokenizeStreamRequest], context: Context
    ) -> AsyncIterator[detokenize_pb2.DetokenizeStreamResponse]:
        call = call_var.get()
        first = await anext(request_iterator, None)
        if first is None:
            yield detokenize_pb2.DetokenizeStreamResponse()
            return
        call.use_model(first.model)
        failure: TriptychError | None = None

        async def requests() -> AsyncIterator[detokenize_pb2.DetokenizeStreamRequest]:
            nonlocal failure
            yield first
            try:
                async for request in request_iterator:
                    yield request
            except TriptychError as error:
                # gRPC would end the call without saying why.
                failure = error

        texts = self._gateway.frontend.detokenize_stream(first.model, requests(), call.record.request_id)
        async with aclosing(texts):
            async for text in texts:
                if failure is not None:
                    break
                yield text
        if failure is not None:
            raise failure

    async def ListModels(self, request: generation_pb2.ListModelsRequest, context: Context) -> generation_pb2.ListModelsResponse:
        return generation_pb2.ListModelsResponse(models=await self._models())

    async def Describe(
        self, request: generation_pb2.GenerationServiceDescribeRequest, context: Context
    ) -> generation_pb2.GenerationServiceDescribeResponse:
        return generation_pb2.GenerationServiceDescribeResponse(instance=self._instance, models=await self._models())

    async def _models(self) -> Sequence[common_pb2.ModelInfo]:
        call = call_var.get()
        served = await self._gateway.frontend.models(call.record.request_id)
        return [model for model in served if call.grant.may_use(model.name)]

    async def GetLoad(self, request: generation_pb2.GetLoadRequest, context: Context) -> generation_pb2.GetLoadResponse:
        load = merged_loads(await self._gateway.frontend.loads(call_var.get().record.request_id))
        load.instance.CopyFrom(self._instance)
        return load
