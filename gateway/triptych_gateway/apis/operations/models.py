"""/admin/models: the models of `triptych serve`, and which of them have memory."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from fastapi import Request
from google.protobuf.message import Message
from pydantic import BaseModel, ConfigDict, Field
from triptych.v1 import models_pb2

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.frontends.manager import administer
from triptych_gateway.state import gateway_of
from triptych_gateway.wire.errors import openapi_responses

State = Literal["loading", "awake", "asleep", "draining", "waking", "failed", "unspecified"]


class ManagedModel(BaseModel):
    """A model of this machine."""

    name: str
    source: Annotated[str, Field(description="A directory, a GGUF file, a built-in name or a hub id.")]
    state: State
    pinned: Annotated[bool, Field(description="It never sleeps to make room for others.")]
    memory_bytes: Annotated[int, Field(description="What it may take while it is awake; 0 if there is no limit.")]
    resident_bytes: Annotated[int, Field(description="What its processes take now.")]
    num_live_requests: int
    idle_s: Annotated[float, Field(description="Since its last request ended, in seconds; 0 while it works.")]
    error: Annotated[str, Field(description="Why it failed.")]


class ManagedModels(BaseModel):
    """All models of this machine."""

    models: list[ManagedModel]
    memory_bytes: Annotated[int, Field(description="What all models may take together; 0 if there is no limit.")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ModelName(_Body):
    """Names a model."""

    name: Annotated[str, Field(min_length=1)]


class NewModel(_Body):
    """A model to load."""

    source: Annotated[str, Field(min_length=1, description="A directory, a GGUF file, a built-in name or a hub id.")]
    name: Annotated[str, Field(description="The name that requests use; by default that of the source.")] = ""
    num_engines: Annotated[int, Field(ge=1, le=16)] = 1


router = AccessRouter(access=Access.OPERATOR, tags=["Operations"], responses=openapi_responses())


@router.get("/admin/models")
async def list_models(request: Request) -> ManagedModels:
    """The models, what they may take and take, and what they do."""
    response = await _ask(request, "ListManagedModels", models_pb2.ListManagedModelsRequest())
    return ManagedModels(models=[_view(model) for model in response.models], memory_bytes=response.memory_bytes)


@router.post("/admin/models/load")
async def load(request: Request, body: NewModel) -> ManagedModel:
    """Start a further model. The answer comes when it is ready."""
    message = models_pb2.LoadModelRequest(source=body.source, name=body.name, num_engines=body.num_engines)
    return _view((await _ask(request, "LoadModel", message)).model)


@router.post("/admin/models/unload")
async def unload(request: Request, body: ModelName) -> None:
    """Stop a model after its work in hand, and forget it."""
    await _ask(request, "UnloadModel", models_pb2.UnloadModelRequest(name=body.name))


@router.post("/admin/models/sleep")
async def sleep(request: Request, body: ModelName) -> ManagedModel:
    """Give a model's memory back after its work in hand. Its next request wakes it."""
    return _view((await _ask(request, "SleepModel", models_pb2.SleepModelRequest(name=body.name))).model)


@router.post("/admin/models/wake")
async def wake(request: Request, body: ModelName) -> ManagedModel:
    """Give a model its memory. Others go to sleep for it if they must."""
    return _view((await _ask(request, "WakeModel", models_pb2.WakeModelRequest(name=body.name))).model)


@router.post("/admin/models/pin")
async def pin(request: Request, body: ModelName) -> ManagedModel:
    """Keep a model awake: it does not sleep to make room for others."""
    return _view((await _ask(request, "PinModel", models_pb2.PinModelRequest(name=body.name, pinned=True))).model)


@router.post("/admin/models/unpin")
async def unpin(request: Request, body: ModelName) -> ManagedModel:
    """Undo `pin`."""
    return _view((await _ask(request, "PinModel", models_pb2.PinModelRequest(name=body.name))).model)


async def _ask(request: Request, method: str, message: Message) -> Any:
    gateway = gateway_of(request)
    return await administer(gateway.model_manager, method, message, has_keys=gateway.settings.has_keys)


def _view(model: models_pb2.ManagedModel) -> ManagedModel:
    state = models_pb2.ModelState.Name(model.state).removeprefix("MODEL_STATE_").lower()
    numbers = {field: getattr(model, field) for field in ManagedModel.model_fields if field != "state"}
    return ManagedModel(state=cast(State, state), **numbers)
