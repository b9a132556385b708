"""GET /v1/models. The answer has Anthropic's shape if the request has Anthropic's header, and OpenAI's otherwise."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import Query, Request
from pydantic import BaseModel, Field
from triptych.v1 import common_pb2

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.state import gateway_of, grant_of, request_id_of
from triptych_gateway.wire.cost import MODALITIES
from triptych_gateway.wire.errors import openapi_responses


class ModelAbilities(BaseModel):
    """What requests to a model may ask for. Triptych's own addition to OpenAI's object."""

    tasks: Annotated[list[str], Field(description="`generate`, or for other models: `embed`, `token_embed`, `classify`, `score`.")]
    modalities: Annotated[list[str], Field(description="Media that messages may have: image, audio, video. Empty: only text.")]
    tools: Annotated[bool, Field(description="Whether `tools` is honoured.")]
    reasoning: Annotated[bool, Field(description="Whether reasoning is told apart from the answer.")]
    constraints: Annotated[list[str], Field(description="Kinds of structured output, by the names of the gRPC contract.")]
    default_sampling: Annotated[
        dict[str, float],
        Field(description="Sampling parameters of requests that set none, from generation_config.json."),
    ]


class Model(BaseModel):
    """A model that requests can name."""

    id: str
    object: Literal["model"] = "model"
    created: Annotated[int, Field(description="When this gateway started, in seconds since 1970.")]
    owned_by: str = "triptych"
    parent: Annotated[str | None, Field(description="The model that this one is an adapter of.")] = None
    max_model_len: Annotated[int, Field(description="Longest sequence, prompt and output together, in tokens.")]
    triptych: ModelAbilities


class ModelList(BaseModel):
    """All models that requests can name."""

    object: Literal["list"] = "list"
    data: list[Model]


class AnthropicModel(BaseModel):
    """A model that requests can name."""

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: Annotated[str, Field(description="When this gateway started, as RFC 3339 has it.")]
    lifecycle: Literal["active"] = "active"
    max_input_tokens: Annotated[int, Field(description="Longest sequence, prompt and output together, in tokens.")]
    max_tokens: Annotated[int, Field(description="The same.")]


class AnthropicModelList(BaseModel):
    """A page of the models that requests can name."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


router = AccessRouter(access=Access.KEY, tags=["OpenAI", "Anthropic"], responses=openapi_responses())
_ANTHROPIC_HEADER = "anthropic-version"


@router.get("/v1/models")
async def list_models(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most models of an answer in Anthropic's shape.")] = 20,
    after_id: Annotated[str | None, Query(description="Only models after this one; in Anthropic's shape.")] = None,
    before_id: Annotated[str | None, Query(description="Only models before this one; in Anthropic's shape.")] = None,
    lifecycle: Annotated[
        list[Literal["active", "deprecated", "retired"]] | None,
        Query(alias="lifecycle[]", description="Only models in these stages; all models here are active. In Anthropic's shape."),
    ] = None,
) -> ModelList | AnthropicModelList:
    """The models that requests can name."""
    served = await gateway_of(request).frontend.models(request_id_of(request))
    models = [model for model in served if grant_of(request).may_use(model.name)]
    if _ANTHROPIC_HEADER not in request.headers:
        return ModelList(data=[_described(model, request) for model in models])
    found = [_described_to_anthropic(model, request) for model in models if lifecycle is None or "active" in lifecycle]
    ids = [model.id for model in found]
    start = ids.index(after_id) + 1 if after_id in ids else 0
    end = ids.index(before_id) if before_id in ids else len(ids)
    page = found[start:end][-limit:] if before_id is not None and after_id is None else found[start:end][:limit]
    return AnthropicModelList(
        data=page,
        has_more=len(page) < end - start,
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
    )


# A model's name can contain slashes.
@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> Model | AnthropicModel:
    """The model of that name."""
    grant_of(request).use_model(name, ())
    model = await gateway_of(request).frontend.model(name, request_id_of(request))
    return _described_to_anthropic(model, request) if _ANTHROPIC_HEADER in request.headers else _described(model, request)


def _described(model: common_pb2.ModelInfo, request: Request) -> Model:
    able = model.capabilities
    abilities = ModelAbilities(
        tasks=[common_pb2.Task.Name(task).removeprefix("TASK_").lower() for task in able.tasks],
        modalities=[MODALITIES[modality] for modality in able.modalities if modality in MODALITIES],
        tools=able.tools,
        reasoning=able.reasoning,
        constraints=list(able.constraints),
        # Floats of the contract have 32 bits: 0.8 and not 0.800000011920929.
        default_sampling={field.name: float(f"{value:.6g}") for field, value in able.default_sampling.ListFields()},
    )
    created = gateway_of(request).start_time
    return Model(id=model.name, created=created, parent=model.parent or None, max_model_len=model.max_model_len, triptych=abilities)


def _described_to_anthropic(model: common_pb2.ModelInfo, request: Request) -> AnthropicModel:
    return AnthropicModel(
        id=model.name,
        display_name=model.name,
        created_at=datetime.fromtimestamp(gateway_of(request).start_time, UTC).isoformat(),
        max_input_tokens=model.max_model_len,
        max_tokens=model.max_model_len,
    )
