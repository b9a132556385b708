"""ModelManagerService over a Unix socket, which only this user can reach. The gateway asks there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
from triptych.errors import InvalidRequestError
from triptych.v1 import models_pb2, models_pb2_grpc
from triptych_common.rpc.channels import SERVER_OPTIONS
from triptych_common.rpc.interceptors import CallInterceptor

from triptych_cli.manager.manager import ModelManager
from triptych_cli.manager.model import Model, Usage

Context = grpc.aio.ServicerContext
#: Loads a model, given its source, its name, and its number of engines. Raises TriptychError.
Load = Callable[[str, str, int], Awaitable[Model]]
_MAX_ENGINES = 16


class ModelManagerServicer(models_pb2_grpc.ModelManagerServiceServicer):
    """Answers from a manager."""

    def __init__(self, manager: ModelManager, load: Load) -> None:
        self._manager, self._load = manager, load

    async def ListManagedModels(
        self, request: models_pb2.ListManagedModelsRequest, context: Context
    ) -> models_pb2.ListManagedModelsResponse:
        models = await asyncio.gather(*map(_described, self._manager.models))
        return models_pb2.ListManagedModelsResponse(models=models, memory_bytes=self._manager.budget or 0)

    async def LoadModel(self, request: models_pb2.LoadModelRequest, context: Context) -> models_pb2.LoadModelResponse:
        if not request.source:
            raise InvalidRequestError("source is needed", field="source")
        if request.num_engines > _MAX_ENGINES:
            message = f"num_engines must be at most {_MAX_ENGINES}; given: {request.num_engines}"
            raise InvalidRequestError(message, field="num_engines", limit=_MAX_ENGINES, value=request.num_engines)
        model = await self._load(request.source, request.name, request.num_engines or 1)
        return models_pb2.LoadModelResponse(model=await _described(model))

    async def UnloadModel(self, request: models_pb2.UnloadModelRequest, context: Context) -> models_pb2.UnloadModelResponse:
        await self._manager.unload(request.name)
        return models_pb2.UnloadModelResponse()

    async def SleepModel(self, request: models_pb2.SleepModelRequest, context: Context) -> models_pb2.SleepModelResponse:
        return models_pb2.SleepModelResponse(model=await _described(await self._manager.sleep(request.name)))

    async def WakeModel(self, request: models_pb2.WakeModelRequest, context: Context) -> models_pb2.WakeModelResponse:
        was_asleep = not self._manager.is_awake(request.name)
        model = await self._manager.wake(request.name)
        # Without usage, which a request that waits does not need.
        return models_pb2.WakeModelResponse(model=_message(model, Usage()), was_asleep=was_asleep)

    async def PinModel(self, request: models_pb2.PinModelRequest, context: Context) -> models_pb2.PinModelResponse:
        return models_pb2.PinModelResponse(model=await _described(self._manager.pin(request.name, request.pinned)))


async def serve_manager(servicer: ModelManagerServicer, socket: Path) -> grpc.aio.Server:
    """Serve it at a socket."""
    server = grpc.aio.server(interceptors=[CallInterceptor()], options=SERVER_OPTIONS)
    models_pb2_grpc.add_ModelManagerServiceServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    return server


async def _described(model: Model) -> models_pb2.ManagedModel:
    return _message(model, await model.services.usage())


def _message(model: Model, usage: Usage) -> models_pb2.ManagedModel:
    return models_pb2.ManagedModel(
        name=model.name,
        source=model.source,
        state=model.state,  # type: ignore[arg-type]
        pinned=model.is_pinned,
        memory_bytes=model.awake_bytes,
        resident_bytes=usage.resident_bytes,
        num_live_requests=usage.num_live_requests,
        idle_s=usage.idle_s,
        error=model.error,
    )
