"""The key of a media item's embeddings: what the frontend asks for, the encoder keeps, and the engine's prefix cache hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from triptych_common.pb import common_pb2

#: Changes whenever the meaning of a key does.
_VERSION = b"triptych-media-key-1"


def canonical_options(options: Mapping[str, Any]) -> str:
    """Processor options as JSON in one spelling, so that equal options give equal keys; empty for none."""
    return json.dumps(options, sort_keys=True, separators=(",", ":"), ensure_ascii=False) if options else ""


def content_hash(content: bytes) -> bytes:
    """What a key knows of a raw file: 32 bytes."""
    return hashlib.sha256(content).digest()


def media_key(scope: bytes, modality: common_pb2.Modality, content: bytes, options_json: str = "", tenant_salt: str = "") -> bytes:
    """32 bytes that differ whenever the embeddings may: never a URL, never a name that a client chose.

    Args:
        scope: the encoder's, from EncoderService.Describe.
        content: the raw file.
        options_json: from `canonical_options`.
        tenant_salt: tenants of different salts share nothing.
    """
    return media_key_of_hash(scope, modality, content_hash(content), options_json, tenant_salt)


def media_key_of_hash(
    scope: bytes, modality: common_pb2.Modality, hashed_content: bytes, options_json: str = "", tenant_salt: str = ""
) -> bytes:
    """The same from the file's `content_hash`, for whoever no longer has the file."""
    digest = hashlib.sha256(_VERSION)
    for part in (scope, str(int(modality)).encode(), hashed_content, options_json.encode(), tenant_salt.encode()):
        # With its length, so that no part can run over into the next.
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
