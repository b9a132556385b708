"""Finds out the language of an audio item, by one token of the model that will write it down."""

from __future__ import annotations

import asyncio

from triptych.errors import InternalError, TriptychError
from triptych.v1 import common_pb2, engine_pb2

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.engines.router import EngineRouter
from triptych_frontend.generation.sequences.media_call import MediaCall
from triptych_frontend.prompt.preprocess import Prompt
from triptych_frontend.prompt.speech import UnknownLanguage


class _FirstToken:
    """A listener that keeps the first token of a sequence."""

    def __init__(self) -> None:
        self.found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_output(self, index: int, output: engine_pb2.SequenceOutput) -> None:
        if self.found.done():
            return
        if output.token_ids:
            self.found.set_result(output.token_ids[0])
        elif output.finish_reason:
            self.found.set_exception(InternalError("the engine wrote no token for the language"))

    def on_error(self, index: int, error: TriptychError) -> None:
        if not self.found.done():
            self.found.set_exception(error)


async def detected_language(
    engines: EngineRouter, encoders: EncoderClient, prompt: Prompt, request: engine_pb2.EngineRequest, unknown: UnknownLanguage
) -> int:
    """The token of the likeliest language.

    Args:
        prompt: with the audio item, whose file is kept.
        request: that will be sent once the language is known.

    Raises:
        TriptychError: as `MediaCall.start`, or what became of the request.
    """
    asking = engine_pb2.EngineRequest()
    asking.CopyFrom(request)
    asking.request_id, asking.n = f"{request.request_id}-language", 1
    asking.ClearField("constraint")
    del asking.prompt_token_ids[:]
    asking.prompt_token_ids.extend(unknown.token_ids)
    asking.sampling.CopyFrom(common_pb2.SamplingParams(max_tokens=1, temperature=0, allowed_token_ids=list(unknown.candidates)))
    listener = _FirstToken()
    call = await MediaCall.start(engines, encoders, prompt, asking, listener, keeps_request=True)
    try:
        return await listener.found
    finally:
        call.close()
