"""What the client for threads does with a call of gRPC."""

from __future__ import annotations

from typing import Any, Generic

import grpc
from google.protobuf.message import Message

from triptych.accumulators import Accumulator, ResponseT, StreamResponseT
from triptych.client.calls import Call


def unary(call: Call, method: Any, request: Message) -> Any:
    """The response of a call that answers once. Raises TriptychError."""
    try:
        response, rpc = call.start(method.with_call, request)
    except grpc.RpcError as error:
        raise call.error(error) from error
    call.answered(rpc.trailing_metadata())
    return response


class Responses(Generic[StreamResponseT, ResponseT]):
    """The responses of a call that streams, and what they add up to."""

    def __init__(self, rpc: Any, call: Call, accumulator: Accumulator[StreamResponseT, ResponseT]) -> None:
        self._rpc = rpc
        self._call = call
        self._accumulator: Accumulator[StreamResponseT, ResponseT] = accumulator
        self._is_closed = False

    @property
    def _has_ended(self) -> bool:
        return bool(not self._rpc.is_active())

    def __next__(self) -> StreamResponseT:
        """The next response. After `close`, the stream ends as if the server had ended it.

        Raises:
            TriptychError: the call failed. What came before is kept in `response`.
        """
        try:
            response: StreamResponseT = next(self._rpc)
        except grpc.RpcError as error:
            if self._is_closed:
                raise StopIteration from None
            raise self._call.error(error) from error
        self._accumulator.add(response)
        return response
