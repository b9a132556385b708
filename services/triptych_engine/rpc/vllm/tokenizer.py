"""The tokenizer's files as one archive, which routers fetch at their start."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from smg_grpc_proto.generated import common_pb2 as smg_pb2
from triptych_common.model.store import TOKENIZER_PATTERNS

_CHUNK_BYTES = 64 << 10


def archive(folder: Path) -> bytes:
    """A zip file of the tokenizer, the chat template and the configuration in a model's directory."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted({path for pattern in TOKENIZER_PATTERNS for path in folder.glob(pattern) if path.is_file()}):
            file.write(path, path.name)
    return content.getvalue()


def chunks(content: bytes) -> Iterator[smg_pb2.GetTokenizerChunk]:
    """The pieces of an archive. The last one has its SHA-256."""
    starts = range(0, len(content), _CHUNK_BYTES)
    for start in starts:
        digest = hashlib.sha256(content).hexdigest() if start == starts[-1] else ""
        yield smg_pb2.GetTokenizerChunk(data=content[start : start + _CHUNK_BYTES], sha256=digest)
