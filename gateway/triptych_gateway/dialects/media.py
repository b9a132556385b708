"""Converts media parts of REST requests to the contract's items, and decodes data: URLs."""

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
from triptych_gateway.schemas.conversation import AudioPart, AudioUrlPart, ImagePart, MediaPart, MediaUrl, Message, VideoPart

#: Largest file that is decoded here. The limits of the body and of the frontend are lower.
_MAX_BYTES = MAX_MESSAGE_BYTES


def media_item(
    part: ImagePart | AudioPart | AudioUrlPart | VideoPart,
    field: str,
    parts: FileParts,
    request_options: Mapping[str, Any] | None,
) -> tuple[common_pb2.MediaItem, bytes | None]:
    """One item, and its file if the file is inline. This decodes the file, so call it in a thread.

    Args:
        field: the part's path, e.g. `messages[0].content[1]`.
        parts: files that were cut out of the body.
        request_options: processor options of the whole request. Options of the part override them.

    Raises:
        InvalidRequestError: the inline file cannot be decoded. The error names the field.
    """
    options = {**(request_options or {}), **(part.mm_processor_kwargs or {})}
    item = common_pb2.MediaItem(uuid=part.uuid, processor_options=to_struct(options) if options else None)
    if isinstance(part, AudioPart):
        item.modality = common_pb2.MODALITY_AUDIO
        if part.input_audio is None:
            return item, None
        item.format = part.input_audio.format
        return item, _from_base64(part.input_audio.data, f"{field}.input_audio.data")
    if isinstance(part, ImagePart):
        item.modality = common_pb2.MODALITY_IMAGE
        if part.image_url is not None and part.image_url.detail is not None:
            item.detail = part.image_url.detail
        return item, _set_url(item, part.image_url, parts, f"{field}.image_url.url")
    if isinstance(part, AudioUrlPart):
        item.modality = common_pb2.MODALITY_AUDIO
        return item, _set_url(item, part.audio_url, parts, f"{field}.audio_url.url")
    item.modality = common_pb2.MODALITY_VIDEO
    return item, _set_url(item, part.video_url, parts, f"{field}.video_url.url")


def _set_url(item: common_pb2.MediaItem, address: MediaUrl | None, parts: FileParts, field: str) -> bytes | None:
    """Set the item's URL, or return the file of a data: URL."""
    if address is None:
        return None
    if address.url[:5].lower() != "data:":
        item.url = address.url
        return None
    try:
        file = parts.take(address.url)
        return file if file is not None else decode_data_url(address.url, _MAX_BYTES)
    except ValueError as error:
        raise InvalidRequestError(f"{field}: {error}", field=field) from error


def _from_base64(text: str, field: str) -> bytes:
    try:
        return pybase64.b64decode(text, validate=True)
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
