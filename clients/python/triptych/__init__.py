"""Client of Triptych, and the contracts that its services speak.

The names of this package are loaded when they are first used, so that `import triptych.v1` and `import triptych.errors` stay light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triptych.accumulators import ChatAccumulator as ChatAccumulator
    from triptych.accumulators import CompleteAccumulator as CompleteAccumulator
    from triptych.client.aio import AsyncClient as AsyncClient
    from triptych.client.aio_streams import AsyncChatStream as AsyncChatStream
    from triptych.client.aio_streams import AsyncCompleteStream as AsyncCompleteStream
    from triptych.client.answers import IncompleteAnswerError as IncompleteAnswerError
    from triptych.client.answers import Parsed as Parsed
    from triptych.client.answers import RankedDocument as RankedDocument
    from triptych.client.channels import aconnect as aconnect
    from triptych.client.channels import connect as connect
    from triptych.client.config import KeepAliveConfig as KeepAliveConfig
    from triptych.client.config import RetryConfig as RetryConfig
    from triptych.client.config import TLSConfig as TLSConfig
    from triptych.client.streams import ChatStream as ChatStream
    from triptych.client.streams import CompleteStream as CompleteStream
    from triptych.client.sync import Client as Client
    from triptych.errors import TriptychError as TriptychError
    from triptych.local.server import LocalServer as LocalServer
    from triptych.offline.beam_search import BeamSearchParams as BeamSearchParams
    from triptych.offline.llm import LLM as LLM
    from triptych.offline.outputs import GenerationError as GenerationError
    from triptych.offline.outputs import RequestOutput as RequestOutput
    from triptych.offline.pooling_methods import PoolingParams as PoolingParams
    from triptych.requests.build import chat_request as chat_request
    from triptych.requests.build import complete_request as complete_request
    from triptych.requests.media import media_item as media_item
    from triptych.sampling_params import SamplingParams as SamplingParams
    from triptych.sampling_params import StructuredOutputsParams as StructuredOutputsParams

__version__ = "0.1.0"

#: Public name -> the module that defines it.
_EXPORTS = {
    name: module
    for module, names in {
        "triptych.accumulators": "ChatAccumulator CompleteAccumulator",
        "triptych.client.aio": "AsyncClient",
        "triptych.client.aio_streams": "AsyncChatStream AsyncCompleteStream",
        "triptych.client.answers": "IncompleteAnswerError Parsed RankedDocument",
        "triptych.client.channels": "aconnect connect",
        "triptych.client.config": "KeepAliveConfig RetryConfig TLSConfig",
        "triptych.client.streams": "ChatStream CompleteStream",
        "triptych.client.sync": "Client",
        "triptych.errors": "TriptychError",
        "triptych.local.server": "LocalServer",
        "triptych.offline.beam_search": "BeamSearchParams",
        "triptych.offline.llm": "LLM",
        "triptych.offline.outputs": "GenerationError RequestOutput",
        "triptych.offline.pooling_methods": "PoolingParams",
        "triptych.requests.build": "chat_request complete_request",
        "triptych.requests.media": "media_item",
        "triptych.sampling_params": "SamplingParams StructuredOutputsParams",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> object:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        value = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("triptych"):
            raise
        from triptych.installation import install_command

        message = f"triptych.{name} needs {error.name}, which is not installed; run: {install_command('triptych', 'local')}"
        raise ImportError(message, name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
