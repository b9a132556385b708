"""GET /v1/models."""

from __future__ import annotations

from fastapi import Request
from triptych_common.pb import common_pb2

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.errors import openapi_responses
from triptych_gateway.schemas.models import Model, ModelList
from triptych_gateway.state import gateway_of, request_id_of

router = AccessRouter(access=Access.KEY, tags=["OpenAI"], responses=openapi_responses())


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """The models that requests can name."""
    models = await gateway_of(request).frontend.models(request_id_of(request))
    return ModelList(data=[_described(model, request) for model in models])


# A model's name can contain slashes.
@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> Model:
    """The model of that name."""
    return _described(await gateway_of(request).frontend.model(name, request_id_of(request)), request)


def _described(model: common_pb2.ModelInfo, request: Request) -> Model:
    return Model(id=model.name, created=gateway_of(request).start_time, max_model_len=model.max_model_len)
