"""The library that pooling models are compared with. It is imported where a test needs it: that takes a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def sentence_transformer(path: Path) -> Any:
    """A model of texts, see `sentence_transformers.SentenceTransformer`."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(path), device="cpu")


def cross_encoder(path: Path, **options: Any) -> Any:
    """A model of pairs, see `sentence_transformers.CrossEncoder`."""
    from sentence_transformers import CrossEncoder

    return CrossEncoder(str(path), device="cpu", **options)
