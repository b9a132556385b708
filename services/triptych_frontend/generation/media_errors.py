"""Errors about the media of a request to an engine, told to the client that sent them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from triptych.errors import EmbeddingUnavailableError, InternalError, ServiceUnavailableError, TriptychError

from triptych_frontend.errors import renamed
from triptych_frontend.media.item import PreparedMedia

#: The engine's name of an item. In Embed it also names the request, which is the only one of its call.
_ENGINE_FIELD = re.compile(r"(?:requests\[0\]\.)?(media\[(\d+)\])")
_RETRY_AFTER_S = 1.0


def is_about_embeddings(error: TriptychError) -> bool:
    """Whether the engine lacked embeddings that an encoder may still compute."""
    if isinstance(error, EmbeddingUnavailableError):
        return True
    # The engine may report an encoder's failure before the encoder itself does, while other encoders are still being asked.
    return isinstance(error, InternalError) and _ENGINE_FIELD.match(error.field) is not None


def in_terms_of_the_request(error: TriptychError, media: Sequence[PreparedMedia]) -> TriptychError:
    """The error with the client's name of the item, and with a class that tells the client what to do."""
    found = _ENGINE_FIELD.match(error.field)
    field, message = error.field, error.message
    if found is not None and int(found[2]) < len(media):
        field, message = media[int(found[2])].field, message.removeprefix("requests[0]: ")
        message = message.replace(found[1], field) if found[1] in message else f"{field}: {message}"
    if isinstance(error, EmbeddingUnavailableError):
        return ServiceUnavailableError(message, field=field, limit=error.limit, value=error.value, retry_after_s=_RETRY_AFTER_S)
    return renamed(error, field, message)
