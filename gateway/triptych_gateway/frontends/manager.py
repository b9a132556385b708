"""The model manager of this machine's `triptych serve`, which wakes models that sleep."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from triptych.errors import ModelNotFoundError, PermissionDeniedError, ServiceUnavailableError, TriptychError
from triptych.status import from_rpc_error, has_details
from triptych.v1 import models_pb2, models_pb2_grpc
from triptych_common.rpc.channels import open_channel

log = logging.getLogger(__name__)
#: Longest time for a call, in seconds: others have to finish their work before a model gets their memory.
CALL_TIMEOUT_S = 900.0


class ModelManagerClient:
    """Calls the model manager.

    Args:
        socket: where it listens.
    """

    def __init__(self, socket: Path) -> None:
        self._channel = open_channel(f"unix:{socket}")
        self._stub = models_pb2_grpc.ModelManagerServiceStub(self._channel)

    async def call(self, method: str, request: Message) -> Any:
        """The answer to a request of ModelManagerService. Raises TriptychError."""
        function: Callable[..., Any] = getattr(self._stub, method)
        try:
            return await function(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if has_details(error):
                raise from_rpc_error(error) from None
            raise ServiceUnavailableError(f"the model manager does not answer: {error.details()}", retry_after_s=5.0) from None

    async def wake(self, model: str) -> bool:
        """Wait until a model has its memory. Returns whether it was asleep. Raises TriptychError if it cannot be woken."""
        try:
            response = await self.call("WakeModel", models_pb2.WakeModelRequest(name=model))
        except ModelNotFoundError:  # of frontends that this manager did not start
            return False
        except TriptychError as error:
            # The reason names services, addresses and other models.
            log.warning("the model %s cannot be woken: %s", model, error.message)
            raise ServiceUnavailableError("the model cannot be woken now; try again later", retry_after_s=5.0) from None
        return bool(response.was_asleep)

    async def close(self) -> None:
        """End calls in flight."""
        await self._channel.close()


async def administer(manager: ModelManagerClient | None, method: str, request: Message, *, has_keys: bool) -> Any:
    """The answer of the manager to an operator.

    Raises:
        ModelNotFoundError: there is no manager.
        PermissionDeniedError: callers need no key, so that anybody could change the models.
        TriptychError: the manager's error.
    """
    if manager is None:
        raise ModelNotFoundError("this gateway has no model manager; that of `triptych serve` has one")
    if not has_keys and method != "ListManagedModels":
        raise PermissionDeniedError("models can be changed only with an operator's key, and this gateway has no keys")
    return await manager.call(method, request)
