"""Calls of a frontend that survive a full queue and a lost engine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from triptych.errors import QueueFullError, ServiceUnavailableError
from triptych.status import from_rpc_error, has_details

Response = TypeVar("Response")

#: How often a request is tried again while services are unavailable. With the pauses below that is at least 45 s, in which a small
#: model is loaded again.
_MAX_RETRIES = 20
#: The first and the longest pause before a retry, in seconds.
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.2, 5.0
#: Pause after a full queue whose error does not say how long, in seconds.
_QUEUE_PAUSE_S = 0.5


async def call(method: Callable[..., Any], request: Any, request_id: str, check: Callable[[], None]) -> Any:
    """The response of a unary call.

    A full queue is waited for, as long as it takes: other requests of the same program fill it. The transport has the same code for
    messages that are too large, without details, and these are not sent again. A call that found services
    unavailable is sent again, a bounded number of times.

    Args:
        request_id: sent as `x-request-id`, the same each time.
        check: called before each retry; raises an error if retries are pointless.

    Raises:
        TriptychError: the service's error.
    """
    num_retries = 0
    while True:
        try:
            return await method(request, metadata=(("x-request-id", request_id),))
        except grpc.aio.AioRpcError as status:
            error, is_of_service = from_rpc_error(status), has_details(status)
        if isinstance(error, QueueFullError) and is_of_service:
            pause_s = error.retry_after_s or _QUEUE_PAUSE_S
        elif isinstance(error, ServiceUnavailableError) and num_retries < _MAX_RETRIES:
            check()
            pause_s = min(_FIRST_PAUSE_S * 2**num_retries, _MAX_PAUSE_S)
            num_retries += 1
        else:
            raise error
        # Requests that failed together do not come back together.
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
