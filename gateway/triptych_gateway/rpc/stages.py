"""PreprocessService and DetokenizeService at the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
from triptych.errors import InvalidRequestError
from triptych.v1 import detokenize_pb2, detokenize_pb2_grpc, preprocess_pb2, preprocess_pb2_grpc

from triptych_gateway.rpc.call import call_var
from triptych_gateway.state import Gateway, call_context_of

Context = grpc.aio.ServicerContext


class StagesServicer(preprocess_pb2_grpc.PreprocessServiceServicer, detokenize_pb2_grpc.DetokenizeServiceServicer):
    """The stages before and after generation, each done by a frontend of the model."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Preprocess(self, request: preprocess_pb2.PreprocessRequest, context: Context) -> preprocess_pb2.PreprocessResponse:
        call, kind = call_var.get(), request.WhichOneof("input")
        if kind is None:
            raise InvalidRequestError("an input is needed: chat or complete", field="input")
        call.use_model(getattr(request, kind).model)
        # What the client says of itself does not count.
        request.context.CopyFrom(call_context_of(call.tenant))
        return await self._gateway.frontend.preprocess(request, call.record.request_id)

    async def Tokenize(self, request: preprocess_pb2.TokenizeRequest, context: Context) -> preprocess_pb2.TokenizeResponse:
        call = call_var.get()
        call.use_model(request.model)
        return await self._gateway.frontend.tokenize(request, call.record.request_id)

    async def Detokenize(self, request: detokenize_pb2.DetokenizeRequest, context: Context) -> detokenize_pb2.DetokenizeResponse:
        call = call_var.get()
        call.use_model(request.model)
        return await self._gateway.frontend.detokenize(request, call.record.request_id)

    async def DetokenizeStream(
        self, request_iterator: AsyncIterator[detokenize_pb2.DetokenizeStreamRequest], context: Context
    ) -> AsyncIterator[detokenize_pb2.DetokenizeStreamResponse]:
        call = call_var.get()
        first = await anext(request_iterator, detokenize_pb2.DetokenizeStreamRequest())
        call.use_model(first.model)

        async def requests() -> AsyncIterator[detokenize_pb2.DetokenizeStreamRequest]:
            yield first
            async for request in request_iterator:
                yield request

        async with aclosing(self._gateway.frontend.detokenize_stream(first.model, requests(), call.record.request_id)) as texts:
            async for text in texts:
                yield text
