"""Writes media of REST requests into the contract's items, and decodes files that are in the request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pybase64
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2
from triptych_common.media.data_url import decode_data_url
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES
from triptych_common.rpc.structs import to_struct

from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import MediaFile
from triptych_gateway.wire.conversation import AnyMediaPart, AudioPart, ImagePart, MediaPart, Message

#: The type of a part, which is also the name of its content -> its modality.
_MODALITIES = {
    "image_url": common_pb2.MODALITY_IMAGE,
    "input_audio": common_pb2.MODALITY_AUDIO,
    "audio_url": common_pb2.MODALITY_AUDIO,
    "video_url": common_pb2.MODALITY_VIDEO,
}


def write_media(
    item: common_pb2.MediaItem, part: AnyMediaPart, field: str, parts: FileParts, request_options: Mapping[str, Any] | None
) -> list[MediaFile]:
    """Write a media part. Returns its file, if that is in the request. This decodes the file, so call it in a thread.

    Args:
        field: the part's path, e.g. `messages[0].content[1]`.
        parts: files that were cut out of the body.
        request_options: processor options of the whole request. Options of the part override them.

    Raises:
        InvalidRequestError: the file cannot be decoded. The error names the field.
    """
    set_options(item, {**(request_options or {}), **(part.mm_processor_kwargs or {})})
    if part.uuid is not None:
        item.uuid = part.uuid
    item.modality = _MODALITIES[part.type]
    content = getattr(part, part.type)
    if content is None:
        return []
    if isinstance(part, AudioPart):
        item.format = content.format
        return [inline_file(item, content.data, parts, f"{field}.{part.type}.data")]
    if isinstance(part, ImagePart) and content.detail is not None:
        item.detail = content.detail
    return set_url(item, content.url, parts, f"{field}.{part.type}.url")


def set_options(item: common_pb2.MediaItem, options: Mapping[str, Any] | None) -> None:
    """Set the processor options of an item, if there are any."""
    if options:
        item.processor_options.CopyFrom(to_struct(options))


def set_url(item: common_pb2.MediaItem, url: str, parts: FileParts, field: str) -> list[MediaFile]:
    """Set the item's URL, or return the file of a data: URL. Raises InvalidRequestError."""
    if url[:5].lower() != "data:":
        item.url = url
        return []
    try:
        file = parts.take(url)
        return [MediaFile(item, file if file is not None else decode_data_url(url, MAX_MESSAGE_BYTES))]
    except ValueError as error:
        raise InvalidRequestError(f"{field}: {error}", field=field) from error


def inline_file(item: common_pb2.MediaItem, data: str, parts: FileParts, field: str) -> MediaFile:
    """The file of an item, from base64. Raises InvalidRequestError."""
    try:
        file = parts.take(data)
        return MediaFile(item, file if file is not None else pybase64.b64decode(data, validate=True))
    except ValueError:
        raise InvalidRequestError(f"{field}: must be a string in base64", field=field) from None


def media_fields(messages: Iterable[Message]) -> dict[str, str]:
    """The contract's path of each media part -> REST's path: messages[0].content[1].media -> ...content[1].image_url."""
    names = {}
    for number, message in enumerate(messages):
        for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if isinstance(part, MediaPart):
                path = f"messages[{number}].content[{index}]"
                names[f"{path}.media"] = f"{path}.{part.type}"
                # In REST these are fields of the part, not of the item.
                names[f"{path}.media.processor_options"] = f"{path}.mm_processor_kwargs"
                names[f"{path}.media.uuid"] = f"{path}.uuid"
                names[f"{path}.media.detail"] = f"{path}.{part.type}.detail"
    return names
