"""Media items in the frontend: as the client sent them, their headers, and their expansion in the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from triptych.v1 import common_pb2

IMAGE, AUDIO, VIDEO = common_pb2.MODALITY_IMAGE, common_pb2.MODALITY_AUDIO, common_pb2.MODALITY_VIDEO
#: Modality -> its name in chat templates, in transformers' processors and in error messages.
MODALITY_NAMES: dict[common_pb2.Modality, str] = {IMAGE: "image", AUDIO: "audio", VIDEO: "video"}


@dataclass(frozen=True)
class ImageHeader:
    """An image's size in pixels, after its EXIF orientation is applied."""

    width: int
    height: int


@dataclass(frozen=True)
class AudioHeader:
    """The length of an audio file."""

    #: Per channel.
    num_samples: int
    sampling_rate: int

    @property
    def duration_s(self) -> float:
        return self.num_samples / self.sampling_rate


@dataclass(frozen=True)
class VideoHeader:
    """A video's size and length."""

    width: int
    height: int
    num_frames: int
    fps: float

    @property
    def duration_s(self) -> float:
        return self.num_frames / self.fps


MediaHeader = ImageHeader | AudioHeader | VideoHeader


@dataclass(frozen=True)
class Expansion:
    """The expansion of a media item's placeholder in the prompt."""

    #: Placeholder tokens, with the text between and around them.
    text: str
    #: Number of embeddings from the encoder, each of which takes the place of a token, unless they stand beside the prompt.
    num_embeds: int
    #: Tensors that positions depend on, named like the arguments of get_rope_index. The first dimension is the number of items.
    layout: tuple[tuple[str, np.ndarray], ...] = ()
    #: The embeddings stand beside the prompt, not in the place of its tokens.
    is_beside: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens that the item takes in the prompt."""
        return 0 if self.is_beside else self.num_embeds


@dataclass(frozen=True)
class MediaPart:
    """The place of a media item in a message."""

    modality: common_pb2.Modality


@dataclass(frozen=True)
class MediaInput:
    """A media item as the client sent it."""

    item: common_pb2.MediaItem
    #: The item's field in the request, e.g. `messages[0].content[1].media`.
    field: str
    #: The item's own processor options.
    options: dict[str, Any]


class MediaFile:
    """A raw file that can be dropped while its item is still in use.

    Args:
        content: None if the client sent only the item's uuid.
    """

    def __init__(self, content: bytes | None) -> None:
        self.content = content
        #: The file was here and has been dropped.
        self.is_dropped = False

    def drop(self) -> None:
        """Drop the content."""
        self.is_dropped = self.is_dropped or self.content is not None
        self.content = None


@dataclass(frozen=True)
class PreparedMedia:
    """A media item that is ready to be encoded."""

    modality: common_pb2.Modality
    #: See triptych_common.media.key.
    key: bytes
    file: MediaFile
    #: Options of the model's processor; part of the key.
    options: Mapping[str, Any]
    expansion: Expansion
    #: The item's field in the request.
    field: str
    tenant_salt: str = ""
