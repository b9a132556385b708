"""Encoded items as bytes for the shared store, and as the chunks of a Fetch response."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from google.protobuf.message import DecodeError
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, encoder_pb2

from triptych_encoder.cache.item import EncodedItem, HostTensor
from triptych_encoder.pb import storage_pb2

#: The first bytes of every stored value. Change it whenever the layout of values changes.
_MAGIC = b"TPE1"
_DIGEST_BYTES = 32


def to_stored(item: EncodedItem) -> bytes:
    """The item with a header and a checksum."""
    tensors = [
        common_pb2.NamedTensor(
            name=name, tensor=common_pb2.Tensor(dtype=tensor.header.dtype, shape=tensor.header.shape, inline=tensor.data)
        )
        for name, tensor in item.tensors.items()
    ]
    body = storage_pb2.StoredItem(num_tokens=item.num_tokens, tensors=tensors).SerializeToString()
    return _MAGIC + hashlib.sha256(body).digest() + body


def from_stored(value: bytes) -> EncodedItem | None:
    """The inverse of `to_stored`. None if the value is damaged or has another version."""
    body = value[len(_MAGIC) + _DIGEST_BYTES :]
    if not value.startswith(_MAGIC) or hashlib.sha256(body).digest() != value[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES]:
        return None
    try:
        stored = storage_pb2.StoredItem.FromString(body)
    except DecodeError:
        return None
    tensors = {
        named.name: HostTensor(common_pb2.Tensor(dtype=named.tensor.dtype, shape=named.tensor.shape), named.tensor.inline)
        for named in stored.tensors
    }
    try:
        is_whole = bool(tensors) and all(tensor.has_consistent_size() for tensor in tensors.values())
    except InvalidRequestError:  # an unknown element type, or an impossible shape
        return None
    return EncodedItem(tensors, stored.num_tokens) if is_whole else None


def chunks(key: bytes, item: EncodedItem, chunk_bytes: int) -> Iterator[encoder_pb2.FetchResponse]:
    """The item's tensors, one after the other, cut into chunks."""
    last_name = list(item.tensors)[-1]
    for name, tensor in item.tensors.items():
        starts = range(0, max(1, len(tensor.data)), chunk_bytes)
        for start in starts:
            is_last = start == starts[-1]
            yield encoder_pb2.FetchResponse(
                key=key,
                tensor_name=name,
                header=tensor.header if start == 0 else None,
                data=tensor.data[start : start + chunk_bytes],
                last_chunk_of_tensor=is_last,
                last_chunk_of_item=is_last and name == last_name,
            )
