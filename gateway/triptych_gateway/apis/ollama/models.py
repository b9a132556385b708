"""What Ollama's clients ask about models: /api/tags, /api/ps, /api/show, /api/version."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import Request
from pydantic import BaseModel, Field
from triptych.v1 import common_pb2, models_pb2
from triptych_common import __version__

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.apis.ollama.answer import OllamaErrorResponse, error_body
from triptych_gateway.apis.ollama.names import OllamaRoute, listed_name, name_of
from triptych_gateway.apis.ollama.schema import ShowRequest
from triptych_gateway.state import gateway_of, grant_of, request_id_of
from triptych_gateway.wire.errors import openapi_responses

#: Clients compare it: with what they need, as numbers. Of the Ollama whose fields are those of the schemas here.
API_VERSION = "0.12.11"
#: Of a model that stays. Ollama's clients take no other word for it: it is the longest time of Go, 292 years.
_FOREVER = timedelta(microseconds=(2**63 - 1) // 1000)
#: Names of the contract's sampling parameters in Ollama's options, where they differ.
_OPTION_NAMES = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}


class ModelDetails(BaseModel):
    """What kind of model it is. Empty texts are not known here."""

    parent_model: Annotated[str, Field(description="The model that this one is an adapter of.")]
    format: str = ""
    family: Annotated[str, Field(description="The architecture, as the checkpoint names it.")]
    families: list[str]
    parameter_size: str = ""
    quantization_level: str


class _Model(BaseModel):
    name: Annotated[str, Field(description="With its tag.")]
    model: Annotated[str, Field(description="The same.")]
    digest: Annotated[str, Field(description="Of the configuration, the tokenizer and samples of the weights.")]
    details: ModelDetails


class ListedModel(_Model):
    """A model that requests can name."""

    modified_at: Annotated[str, Field(description="When this gateway started.")]
    size: Annotated[int, Field(description="Not known here: 0.")] = 0


class ListedModels(BaseModel):
    """All models that requests can name, those that sleep included."""

    models: list[ListedModel]


class LoadedModel(_Model):
    """A model in memory."""

    expires_at: Annotated[str, Field(description="In 292 years: it stays until others need its memory.")]
    size: Annotated[int, Field(description="What its processes take, in bytes, behind `triptych serve`; otherwise 0.")]
    size_vram: Annotated[int, Field(description="Not known here: 0.")] = 0
    context_length: int


class LoadedModels(BaseModel):
    """The models that answer without being loaded first."""

    models: list[LoadedModel]


class ShownModel(BaseModel):
    """A model, as far as it is known here."""

    modified_at: Annotated[str, Field(description="When this gateway started.")]
    modelfile: str = ""
    template: Annotated[str, Field(description="Not known here: empty.")] = ""
    parameters: Annotated[str, Field(description="Options of requests that set none, a line each.")]
    details: ModelDetails
    model_info: Annotated[dict[str, Any], Field(description="Its architecture, its context length, the size of its vocabulary.")]
    capabilities: Annotated[
        list[str],
        Field(description="completion, insert, tools, vision, thinking, or of other models embedding: what requests may ask for."),
    ]


class VersionAnswer(BaseModel):
    """The version of Ollama's API that is served, and that of Triptych."""

    version: str
    triptych: str


router = AccessRouter(
    access=Access.KEY,
    tags=["Ollama"],
    route_class=OllamaRoute,
    responses=openapi_responses(OllamaErrorResponse),
    error_body=error_body,
)
open_router = AccessRouter(access=Access.OPEN, tags=["Ollama"], error_body=error_body)


@router.get("/api/tags")
async def list_models(request: Request) -> ListedModels:
    """The models that requests can name."""
    served = await gateway_of(request).frontend.models(request_id_of(request))
    since = _since(request).isoformat()
    mine = [model for model in served if grant_of(request).may_use(model.name)]
    return ListedModels(models=[ListedModel(**_identity(model), modified_at=since) for model in mine])


@router.head("/api/tags", include_in_schema=False)
async def probe_models(request: Request) -> None:
    """Whether the list is there."""
    await list_models(request)


@router.get("/api/ps")
async def list_loaded_models(request: Request) -> LoadedModels:
    """The models in memory."""
    gateway = gateway_of(request)
    sizes: dict[str, int] = {}
    if gateway.model_manager is not None:
        managed = await gateway.model_manager.call("ListManagedModels", models_pb2.ListManagedModelsRequest())
        sizes = {model.name: model.resident_bytes for model in managed.models}
    expires = (_since(request) + _FOREVER).isoformat()
    mine = [model for model in gateway.frontend.loaded if grant_of(request).may_use(model.name)]
    return LoadedModels(
        models=[
            LoadedModel(**_identity(model), expires_at=expires, size=sizes.get(model.name, 0), context_length=model.max_model_len)
            for model in mine
        ]
    )


@router.post("/api/show")
async def show_model(request: Request, body: ShowRequest) -> ShownModel:
    """What is known of a model."""
    name = name_of(request, body.model or body.name or "")
    model = await gateway_of(request).frontend.model(name, request_id_of(request))
    able, architecture = model.capabilities, model.architecture
    # Floats of the contract have 32 bits.
    defaults = {_OPTION_NAMES.get(field.name, field.name): f"{value:.6g}" for field, value in able.default_sampling.ListFields()}
    return ShownModel(
        modified_at=_since(request).isoformat(),
        parameters="\n".join(f"{name:<30} {value}" for name, value in defaults.items()),
        details=_details(model),
        model_info={
            "general.architecture": architecture,
            "general.basename": model.name,
            f"{architecture}.context_length": model.max_model_len,
            f"{architecture}.vocab_size": model.vocab_size,
        },
        capabilities=_capabilities(able),
    )


@open_router.get("/api/version")
async def version() -> VersionAnswer:
    """The version of Ollama's API that is served."""
    return VersionAnswer(version=API_VERSION, triptych=__version__)


@open_router.head("/api/version", include_in_schema=False)
async def probe_version() -> None:
    """Whether the server is there."""


def _since(request: Request) -> datetime:
    return datetime.fromtimestamp(gateway_of(request).start_time, UTC)


def _identity(model: common_pb2.ModelInfo) -> dict[str, Any]:
    name = listed_name(model.name)
    # Adapters have the fingerprints of their model.
    content = " ".join((model.fingerprint, model.weights_fingerprint, model.name if model.parent else ""))
    return {"name": name, "model": name, "digest": hashlib.sha256(content.encode()).hexdigest(), "details": _details(model)}


def _details(model: common_pb2.ModelInfo) -> ModelDetails:
    return ModelDetails(
        parent_model=model.parent,
        family=model.architecture,
        families=[model.architecture],
        quantization_level="" if model.quantization == "none" else model.quantization.upper(),
    )


def _capabilities(able: common_pb2.Capabilities) -> list[str]:
    generates = not able.tasks or common_pb2.TASK_GENERATE in able.tasks
    has = {
        "completion": generates,
        "insert": able.infill,
        "tools": able.tools,
        "vision": common_pb2.MODALITY_IMAGE in able.modalities,
        "thinking": able.reasoning,
        "embedding": common_pb2.TASK_EMBED in able.tasks,
    }
    return [name for name, is_there in has.items() if is_there]
