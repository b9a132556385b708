"""What all methods of `LLM` share: the services, a connection to them, and the window of requests in flight."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc

from triptych.client.channels import aconnect
from triptych.client.config import RetryConfig, TLSConfig
from triptych.errors import (
    InvalidRequestError,
    QueueFullError,
    RequestAbortedError,
    ServiceUnavailableError,
    StartupError,
    TriptychError,
)
from triptych.local import LocalServer
from triptych.offline.calls.loop import Job, LoopThread, Window
from triptych.offline.calls.progress import ProgressBar
from triptych.offline.outputs import GenerationError
from triptych.status import from_rpc_error, has_details, is_lost
from triptych.v1 import common_pb2, detokenize_pb2_grpc, generation_pb2, generation_pb2_grpc, preprocess_pb2_grpc

T = TypeVar("T")
Request = TypeVar("Request")

#: Errors of a prompt that is not what it should be: they are the prompt's own, like an error of the service.
_PROMPT_ERRORS = (TriptychError, OSError, TypeError, ValueError)
#: Most bytes of requests in flight. Frontends hold at most 512 MiB of media files, and refuse further ones.
_MAX_BYTES_IN_FLIGHT = 128 << 20
#: How often a request is tried again while services are unavailable. With the pauses below that is at least 45 s, in which a small
#: model is loaded again.
_MAX_RETRIES = 20
#: The first and the longest pause before a retry, in seconds.
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.2, 5.0
#: Pause after a full queue whose error does not say how long, in seconds.
_QUEUE_PAUSE_S = 0.5


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The result of one prompt, and its tokens."""

    result: T
    num_input_tokens: int
    num_output_tokens: int


def new_request_id() -> str:
    """An id by which logs and services know a request."""
    return uuid.uuid4().hex


class Runtime:
    """A connection to a frontend on a loop of its own, and the services behind it if they were started for it.

    Args:
        server: services that end with this object; None if they are others' own.
        address: host:port of the frontend.
        model: name of the model; empty for the only one.
        max_in_flight: requests that are sent before the first of them is answered.
        api_key, tls: of the connection.
    """

    def __init__(
        self, server: LocalServer | None, address: str, model: str, max_in_flight: int, api_key: str | None, tls: TLSConfig | None
    ) -> None:
        self._server = server
        self._window = Window(max_in_flight, _MAX_BYTES_IN_FLIGHT)
        self._pid = os.getpid()
        self._loop = LoopThread()
        try:
            self._loop.run(self._connect(address, api_key, tls))
            self.model = self._find_model(model)
        except BaseException:
            self.close()
            raise

    async def _connect(self, address: str, api_key: str | None, tls: TLSConfig | None) -> None:
        # Retries are this package's own.
        self._channel = aconnect(address, api_key=api_key, tls=tls, retry=RetryConfig(max_attempts=1))
        self.generation: Any = generation_pb2_grpc.GenerationServiceStub(self._channel)
        self.preprocess: Any = preprocess_pb2_grpc.PreprocessServiceStub(self._channel)
        self.detokenize: Any = detokenize_pb2_grpc.DetokenizeServiceStub(self._channel)

    def _find_model(self, name: str) -> common_pb2.ModelInfo:
        listed = self._loop.run(self.call(self.generation.ListModels, generation_pb2.ListModelsRequest())).models
        known: dict[str, common_pb2.ModelInfo] = {model.name: model for model in listed}
        if not name and len(known) == 1:
            return next(iter(known.values()))
        if name not in known:
            raise InvalidRequestError(f"model {name!r} is not served; served are: {', '.join(known)}", field="model", value=name)
        return known[name]

    async def call(self, method: Callable[..., Any], request: Any, request_id: str = "") -> Any:
        """The response of a unary call. Only on the loop.

        A full queue is waited for, as long as it takes: other requests of the same program fill it. The transport has the same code
        for messages that are too large, without details, and these are not sent again. A call that found services unavailable is
        sent again, a bounded number of times, unless the services are this object's own and have ended.

        Args:
            request_id: sent as `x-request-id`, the same each time; empty for a new one.

        Raises:
            TriptychError: the service's error.
        """
        metadata = (("x-request-id", request_id or new_request_id()),)
        num_retries = 0
        while True:
            try:
                return await method(request, metadata=metadata)
            except grpc.aio.AioRpcError as status:
                error, is_of_service, was_lost = from_rpc_error(status), has_details(status), is_lost(status)
            if isinstance(error, QueueFullError) and is_of_service:
                pause_s = error.retry_after_s or _QUEUE_PAUSE_S
            elif (isinstance(error, ServiceUnavailableError) or was_lost) and num_retries < _MAX_RETRIES:
                if self._server is not None:
                    self._server.check()
                pause_s = min(_FIRST_PAUSE_S * 2**num_retries, _MAX_PAUSE_S)
                num_retries += 1
            else:
                raise error
            # Requests that failed together do not come back together.
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    def run(
        self,
        items: Iterable[T],
        read: Callable[[T], tuple[Request, int]],
        answer: Callable[[Request], Awaitable[Outcome[Any]]],
        bar: ProgressBar,
        *,
        raise_on_error: bool,
    ) -> list[Any]:
        """The results for all items, in their order.

        Args:
            read: makes the request of an item, in the calling thread, and tells its size in bytes.
            answer: sends a request, on the loop.
            raise_on_error: False: an item that failed has its GenerationError in the list.

        Raises:
            GenerationError: an item failed. The requests in flight are cancelled.
            StartupError: the services have ended.
            RequestAbortedError: the object was closed meanwhile.
        """
        results: dict[int, Any] = {}
        jobs = (_job(item, read, answer) for item in items)
        with contextlib.closing(bar), contextlib.closing(self._window.run(self._loop, jobs)) as ended:
            for index, task in ended:
                if task.cancelled():
                    raise RequestAbortedError("the request was cancelled: this object was closed")
                error = task.exception()
                if error is None:
                    outcome = task.result()
                    results[index] = outcome.result
                    bar.update(outcome.num_input_tokens, outcome.num_output_tokens)
                elif isinstance(error, StartupError) or not isinstance(error, _PROMPT_ERRORS):
                    raise error
                elif raise_on_error:
                    raise GenerationError(index, error) from error
                else:
                    results[index] = GenerationError(index, error)
                    bar.update(0, 0)
        return [results[index] for index in range(len(results))]

    def close(self) -> None:
        """Cancel all requests, and stop the services if they are this object's own. Does nothing in a fork, which has neither."""
        if os.getpid() != self._pid:
            return
        if self._loop.is_current:
            # The garbage collector runs in whatever thread allocates. The loop's own cannot wait for its end.
            threading.Thread(target=self.close, name="triptych-close").start()
            return
        try:
            self._loop.close(self._disconnect)
        finally:
            if self._server is not None:
                self._server.close()

    async def _disconnect(self) -> None:
        if hasattr(self, "_channel"):
            await self._channel.close()


def _job(item: T, read: Callable[[T], tuple[Request, int]], answer: Callable[[Request], Awaitable[Any]]) -> Job[Any]:
    try:
        request, num_bytes = read(item)
    except _PROMPT_ERRORS as error:
        return Job(functools.partial(_fail, error), 0)
    return Job(functools.partial(answer, request), num_bytes)  # type: ignore[arg-type]


async def _fail(error: BaseException) -> Any:
    raise error
