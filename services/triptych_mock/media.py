"""The media of a request: what the mock reports of them, and the names that clients gave them."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, encoder_pb2, generation_pb2

#: Tokens that an item takes in the prompt.
NUM_TOKENS = 4
#: Items and names that are remembered.
_MAX_KNOWN = 10_000


def items_of(messages: Sequence[generation_pb2.ChatMessage]) -> Iterator[tuple[str, common_pb2.MediaItem]]:
    """The media of a conversation, each with its field."""
    for i, message in enumerate(messages):
        for j, part in enumerate(message.content):
            if part.HasField("media"):
                yield f"messages[{i}].content[{j}].media", part.media


class KnownMedia:
    """Items that came before, by content and by uuid, and files that were uploaded."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self._uuids: OrderedDict[str, bytes] = OrderedDict()
        self._uploads: OrderedDict[str, bytes] = OrderedDict()

    def report(self, field: str, item: common_pb2.MediaItem) -> generation_pb2.MediaReport:
        """What the item cost: a miss when it is new, else a hit. Raises InvalidRequestError for an item without content."""
        key = self._key(field, item)
        tier = encoder_pb2.CACHE_TIER_LOCAL if key in self._keys else encoder_pb2.CACHE_TIER_MISS
        _remember(self._keys, key, None)
        if item.uuid:
            _remember(self._uuids, item.uuid, key)
        source = common_pb2.EMBEDDING_SOURCE_ENCODER
        return generation_pb2.MediaReport(modality=item.modality, key=key, num_tokens=NUM_TOKENS, tier=tier, source=source)

    def _key(self, field: str, item: common_pb2.MediaItem) -> bytes:
        kind = item.WhichOneof("source")
        if kind == "data":
            return hashlib.sha256(item.data).digest()
        if kind == "url":
            return hashlib.sha256(item.url.encode()).digest()
        if kind == "upload_id":
            uploaded = self._uploads.pop(item.upload_id, None)
            if uploaded is None:
                message = f"{field}.upload_id is not known here (any more); upload the file again"
                raise InvalidRequestError(message, field=f"{field}.upload_id", value=item.upload_id)
            return uploaded
        if not item.uuid:
            raise InvalidRequestError(f"{field} needs data, a url, an upload_id, or the uuid of an earlier item", field=field)
        if (known := self._uuids.get(item.uuid)) is None:
            message = f"{field}.uuid is not known here (any more); send the item itself with it"
            raise InvalidRequestError(message, field=f"{field}.uuid", value=item.uuid)
        return known

    def uploaded(self, key: bytes) -> str:
        """Remember an uploaded file by its SHA-256. Returns its upload_id."""
        upload_id = f"upload-{secrets.token_hex(8)}"
        _remember(self._uploads, upload_id, key)
        return upload_id


def _remember(entries: OrderedDict, key: object, value: object) -> None:
    entries[key] = value
    entries.move_to_end(key)
    while len(entries) > _MAX_KNOWN:
        entries.popitem(last=False)
