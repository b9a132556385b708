"""Types of values that become requests."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from triptych.v1 import common_pb2, generation_pb2

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    #: A file by its path or its bytes, an `https:` or `data:` address, or an item of the contracts. An image may also be a PIL
    #: image or an array uint8 [height, width, 3] or [height, width].
    MediaSource = str | os.PathLike[str] | bytes | common_pb2.MediaItem | Image | np.ndarray[Any, Any]
else:
    MediaSource = Any

#: One turn: OpenAI's dictionary, a message of the contracts, or a choice of an earlier answer.
Turn = Mapping[str, Any] | generation_pb2.ChatMessage | generation_pb2.Choice
#: A user's text, or a conversation.
Messages = str | Sequence[Turn]
#: Text, token ids, or a conversation.
PoolingInput = str | Sequence[int] | Sequence[Mapping[str, Any] | generation_pb2.ChatMessage] | generation_pb2.EmbedInput
#: One input, or several.
PoolingInputs = PoolingInput | Sequence[PoolingInput]
