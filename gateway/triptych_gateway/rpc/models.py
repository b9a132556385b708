"""ModelManagerService at the gateway: what operators may do with the models of `triptych serve`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message
from triptych.v1 import models_pb2, models_pb2_grpc

from triptych_gateway.frontends.manager import administer
from triptych_gateway.state import Gateway

SERVICE = models_pb2.DESCRIPTOR.services_by_name["ModelManagerService"]


class ModelManagerServicer(models_pb2_grpc.ModelManagerServiceServicer):
    """Passes each call on to the manager."""

    def __init__(self, gateway: Gateway) -> None:
        def passing(method: str) -> Callable[[Message, grpc.aio.ServicerContext], Awaitable[Any]]:
            async def behaviour(request: Message, context: grpc.aio.ServicerContext) -> Any:
                return await administer(gateway.model_manager, method, request, has_keys=gateway.settings.has_keys)

            return behaviour

        for method in SERVICE.methods:
            setattr(self, method.name, passing(method.name))
