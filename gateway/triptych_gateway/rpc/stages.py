"""PreprocessService and DetokenizeService at the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import grpc
from triptych.errors import InvalidRequestError, TriptychError
from triptych.v1 import detokenize_pb2, detokenize_pb2_grpc, preprocess_pb2, preprocess_pb2_grpc

from triptych_gateway.frontends.client import DETOKENIZE, PREPROCESS, TOKENIZE
from triptych_gateway.rpc.call import Call, call_var
from triptych_gateway.state import Gateway, call_context_of

Context = grpc.aio.ServicerContext


class StagesServicer(preprocess_pb2_grpc.PreprocessServiceServicer, detokenize_pb2_grpc.DetokenizeServiceServicer):
    """The stages before and after generation, each done by a frontend of the model.

    Args:
        put_files: puts the files of a call into its request.
    """

    def __init__(self, gateway: Gateway, put_files: Callable[[Call], None]) -> None:
        self._gateway, self._put_files = gateway, put_files

    async def Preprocess(self, request: preprocess_pb2.PreprocessRequest, context: Context) -> preprocess_pb2.PreprocessResponse:
        call, kind = call_var.get(), request.WhichOneof("input")
        if kind is None:
            raise InvalidRequestError("an input is needed: chat or complete", field="input")
        call.use_model(getattr(request, kind).model)
        # What the client says of itself does not count.
        request.context.CopyFrom(call_context_of(call.tenant))
        self._put_files(call)
        return await self._gateway.frontend.call(PREPROCESS, request, call.record.request_id)

    async def Tokenize(self, request: preprocess_pb2.TokenizeRequest, context: Context) -> preprocess_pb2.TokenizeResponse:
        call = call_var.get()
        call.use_model(request.model)
        return await self._gateway.frontend.call(TOKENIZE, request, call.record.request_id)

    async def Detokenize(self, request: detokenize_pb2.DetokenizeRequest, context: Context) -> detokenize_pb2.DetokenizeResponse:
        call = call_var.get()
        call.use_model(request.model)
        return await self._gateway.frontend.call(DETOKENIZE, request, call.record.request_id)

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
