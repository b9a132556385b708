"""Embed for an input with media. It goes to an engine while its items are still being encoded, and again if embeddings are lost.

This is to Embed what `generation.media_call` is to a generation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from triptych.errors import TriptychError
from triptych.v1 import engine_pb2

from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.encoding import MediaEncoding
from triptych_frontend.engines.router import EngineRouter
from triptych_frontend.generation.media_errors import in_terms_of_the_request, is_about_embeddings
from triptych_frontend.generation.sequences.media_call import MAX_RESUBMISSIONS
from triptych_frontend.prompt.preprocess import Prompt

log = logging.getLogger(__name__)
Response = engine_pb2.EngineServiceEmbedResponse


async def embed_with_media(
    engines: EngineRouter,
    encoders: EncoderClient,
    prompt: Prompt,
    request: engine_pb2.EngineServiceEmbedRequest,
    request_id: str,
) -> Response:
    """The engine's answer for one prompt with media.

    Args:
        request: a call with this prompt alone, without its media.

    Raises:
        TriptychError: an error about an item has the item's field.
    """
    encoding = MediaEncoding(encoders, prompt.media)
    (only,) = request.requests
    only.placeholders.extend(prompt.placeholders)
    try:
        await encoding.announced()
        for num_left in reversed(range(MAX_RESUBMISSIONS + 1)):
            del only.media[:]
            only.media.extend(encoding.refs)
            try:
                return await _unless_encoding_fails(engines.embed(request, request_id), encoding)
            except TriptychError as error:
                if not is_about_embeddings(error):
                    raise
                if not num_left:
                    encoders.counts["failed"] += 1
                    raise
                log.warning("the engine did not get embeddings: %s", error.message)
            encoding.lose()
            await encoding.wait()
            encoders.counts["resubmitted"] += 1
        raise AssertionError("unreachable")
    except TriptychError as error:
        raise in_terms_of_the_request(error, prompt.media) from error
    finally:
        encoding.end()


async def _unless_encoding_fails(call: Coroutine[None, None, Response], encoding: MediaEncoding) -> Response:
    """The result of the call, which ends with the encoders' error if an item cannot be encoded."""
    computing, waiting = asyncio.create_task(call), asyncio.create_task(encoding.wait())
    try:
        await asyncio.wait((computing, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not computing.done():
            waiting.result()
        return await computing
    finally:
        for task in (computing, waiting):
            task.cancel()
        await asyncio.gather(computing, waiting, return_exceptions=True)
