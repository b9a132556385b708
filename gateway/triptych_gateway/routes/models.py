"""GET /v1/models."""

from __future__ import annotations

from fastapi import APIRouter, Request

from triptych_gateway.errors import openapi_responses
from triptych_gateway.schemas.models import Model, ModelList
from triptych_gateway.state import gateway_of, request_id_of

router = APIRouter(tags=["OpenAI"], responses=openapi_responses())


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """The models that requests can name."""
    gateway = gateway_of(request)
    models = await gateway.frontend.models(request_id_of(request))
    data = [Model(id=model.name, created=gateway.start_time, max_model_len=model.max_model_len) for model in models]
    return ModelList(data=data)


# Names of models can hold slashes.
@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> Model:
    """One of them."""
    await gateway_of(request).frontend.require_model(name, request_id_of(request))
    models = await list_models(request)
    return next(model for model in models.data if model.id == name)
