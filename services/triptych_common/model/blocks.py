"""Names of KV cache blocks: what an engine's prefix cache is indexed by, and what routers compare prompts with."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence


def root_hash(salt: str) -> bytes:
    """What stands before the first block of a prompt. Requests share blocks only with requests of the same salt."""
    return hashlib.sha256(salt.encode()).digest()


def adapter_salt(salt: str, digest: str) -> str:
    """The salt of requests with this adapter; without a digest the salt itself. `Principal.scoped_salt` makes none like it."""
    return f"lora:{digest}:{salt}" if digest else salt


def hash_block(parent: bytes, token_ids: Sequence[int], media: bytes = b"") -> bytes:
    """Hash of a full block: of its tokens and, through the parent's hash, of all tokens before it. 32 bytes.

    It is sha256, because after a collision one tenant's request would be answered from another tenant's text.

    Args:
        media: what the block depends on besides its tokens.
    """
    return hashlib.sha256(parent + array("I", token_ids).tobytes() + media).digest()


def block_id(block_hash: bytes) -> int:
    """The name of a block in WatchBlocks. A collision makes a router choose another engine, and nothing else."""
    return int.from_bytes(block_hash[:8], "little")


def prefix_ids(salt: str, token_ids: Sequence[int], block_size: int) -> list[int]:
    """The names of the full blocks of a prompt without media, in order."""
    tokens = array("I", token_ids)
    ids, parent, data, num_bytes = list[int](), root_hash(salt), tokens.tobytes(), block_size * tokens.itemsize
    for start in range(0, len(data) - num_bytes + 1, num_bytes):
        parent = hashlib.sha256(parent + data[start : start + num_bytes]).digest()  # as `hash_block`
        ids.append(block_id(parent))
    return ids
