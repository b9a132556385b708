"""The cache key of a media item's embeddings. The frontend, the encoder and the engine's prefix cache use the same key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from triptych.v1 import common_pb2

#: Change this whenever the meaning of a key changes.
_VERSION = b"triptych-media-key-1"


def canonical_options(options: Mapping[str, Any]) -> str:
    """Processor options as canonical JSON, so that equal options give equal keys; empty when there are none."""
    return json.dumps(options, sort_keys=True, separators=(",", ":"), ensure_ascii=False) if options else ""


def content_hash(content: bytes) -> bytes:
    """The hash of a raw file that goes into its key: 32 bytes."""
    return hashlib.sha256(content).digest()


def media_key(scope: bytes, modality: common_pb2.Modality, content: bytes, options_json: str = "", tenant_salt: str = "") -> bytes:
    """A key of 32 bytes that differs whenever the embeddings may differ. It contains no URL and no name that a client chose.

    Args:
        scope: the encoder's scope, from EncoderService.Describe.
        content: the raw file.
        options_json: from `canonical_options`.
        tenant_salt: tenants with different salts share no entries.
    """
    return media_key_of_hash(scope, modality, content_hash(content), options_json, tenant_salt)


def media_key_of_hash(
    scope: bytes, modality: common_pb2.Modality, hashed_content: bytes, options_json: str = "", tenant_salt: str = ""
) -> bytes:
    """Same as `media_key`, but from the file's `content_hash`, for callers that no longer have the file."""
    digest = hashlib.sha256(_VERSION)
    for part in (scope, str(int(modality)).encode(), hashed_content, options_json.encode(), tenant_salt.encode()):
        # The length prefix keeps the parts apart.
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
