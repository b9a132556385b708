"""Media items of a request as the scheduler and the runner see them: where they stand in the prompt, and their embeddings."""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np


class Modality(Enum):
    """What kind of signal an item carries."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"


class EmbeddingSource(Enum):
    """How an item's embeddings came to a sequence; as in the contract (common.proto)."""

    ENCODER = "encoder"
    ENGINE = "engine"
    PREFIX_CACHE = "prefix_cache"


class Bidirectional(Enum):
    """Which tokens of a prompt with media see tokens after them."""

    NONE = "none"
    #: Neighbouring placeholder tokens of pictures see each other (Gemma3).
    IMAGES = "images"
    #: All prompt tokens see each other (PaliGemma).
    PROMPT = "prompt"


#: Why a model without towers takes no media.
TEXT_ONLY = "this engine serves text only; media items cannot be taken"


@dataclass(frozen=True, slots=True)
class MediaTraits:
    """What the engine must know about a model that takes media."""

    #: Modality -> tokens that stand for it.
    placeholder_token_ids: Mapping[Modality, frozenset[int]]
    #: Extent of an embedding.
    hidden_size: int
    #: Tensors beside the embeddings that are added in the first layers, for pictures and videos.
    num_deepstack: int = 0
    bidirectional: Bidirectional = Bidirectional.NONE
    #: Modality -> what positions need to know about an item of it.
    layout_names: Mapping[Modality, tuple[str, ...]] = field(default_factory=dict)
    #: Patches of a grid per embedding, along height and along width.
    spatial_merge_size: int = 1

    @property
    def modalities(self) -> tuple[Modality, ...]:
        return tuple(self.placeholder_token_ids)


@dataclass(frozen=True, slots=True)
class EmbeddingTensor:
    """Row-major, little-endian."""

    dtype: str  # float32, float16 or bfloat16
    shape: tuple[int, ...]
    data: bytearray


@dataclass(frozen=True, slots=True)
class Embeddings:
    """What the encoder has for an item: embeds [num_tokens, hidden_size], and deepstack.{i} of the same shape."""

    tensors: Mapping[str, EmbeddingTensor]

    @property
    def num_tokens(self) -> int:
        return self.tensors["embeds"].shape[0]

    @property
    def num_bytes(self) -> int:
        return sum(len(tensor.data) for tensor in self.tensors.values())


@dataclass(eq=False, slots=True)
class MediaItem:
    """One item of one request, and how its embeddings came."""

    index: int
    modality: Modality
    key: bytes
    encoder_id: str = ""
    lease_id: str = ""
    layout: Mapping[str, np.ndarray] = field(default_factory=dict)
    num_tokens: int = 0
    end: int = 0  # one past its last token in the prompt
    source: EmbeddingSource | None = None
    asked_time: float | None = None
    fetch_s: float = 0.0
    num_bytes: int = 0

    def ask(self, source: EmbeddingSource) -> None:
        """Note where the embeddings come from; the first time counts."""
        if self.source is None:
            self.source, self.asked_time = source, time.monotonic()

    def note_arrival(self, num_bytes: int) -> None:
        """Note that the embeddings are there; the first time counts."""
        if self.asked_time is not None:
            self.fetch_s, self.asked_time = time.monotonic() - self.asked_time, None
            self.num_bytes = num_bytes if self.source is EmbeddingSource.ENCODER else 0

    @property
    def identity(self) -> bytes:
        """Hash of what keys and values of its tokens depend on beside their places: its embeddings and its layout."""
        digest = hashlib.sha256(self.key)
        for name, array in sorted(self.layout.items()):
            digest.update(f"{name}:{array.dtype}:{array.shape}:".encode() + array.tobytes())
        return digest.digest()


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A run of prompt tokens that an item's embeddings replace."""

    offset: int
    length: int
    item: MediaItem
    first_row: int  # of the item's embeddings

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Span:
    """Prompt tokens that all see each other, so that they are computed in one step."""

    start: int
    end: int
    #: Hash of its tokens and items: keys and values of each of its tokens depend on all of them.
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class PromptMedia:
    """The media of one prompt."""

    items: tuple[MediaItem, ...] = ()
    #: By offset, without overlap.
    placeholders: tuple[Placeholder, ...] = ()
    #: By start, without overlap.
    spans: tuple[Span, ...] = ()
    #: One past the last token that an embedding replaces or that a span holds.
    end: int = field(init=False)
    _identities: dict[int, bytes] = field(default_factory=dict)  # index of an item -> its identity

    def __post_init__(self) -> None:
        ends = (self.placeholders[-1].end if self.placeholders else 0, self.spans[-1].end if self.spans else 0)
        object.__setattr__(self, "end", max(ends))

    def overlapping(self, start: int, end: int) -> Sequence[Placeholder]:
        """The placeholders with tokens in [start, end)."""
        first = bisect_right(self.placeholders, start, key=lambda placeholder: placeholder.end)
        last = first
        while last < len(self.placeholders) and self.placeholders[last].offset < end:
            last += 1
        return self.placeholders[first:last]

    def fingerprint(self, start: int, end: int) -> bytes:
        """What keys and values of tokens [start, end) depend on beside the token ids up to `end`; empty where that is nothing."""
        parts = [span.digest for span in self.spans if span.start < end and start < span.end]
        for placeholder in self.overlapping(start, end):
            first = max(start, placeholder.offset)
            row = placeholder.first_row + first - placeholder.offset
            place = (first - start, min(end, placeholder.end) - start, row)
            parts.append(self._identity(placeholder.item) + b"".join(number.to_bytes(8, "little") for number in place))
        return b"".join(parts)

    def _identity(self, item: MediaItem) -> bytes:
        if item.index not in self._identities:
            self._identities[item.index] = item.identity
        return self._identities[item.index]

    def whole_spans(self, start: int, num_tokens: int) -> int:
        """How many of the tokens from `start` can be computed without splitting a span.

        A span that starts before `start` is no longer split by it: keys and values before it were computed with all of the span.
        """
        for span in self.spans:
            if span.start < start + num_tokens < span.end and start < span.end:
                return max(0, span.start - start)
        return num_tokens

    def span_rest(self, start: int) -> int:
        """Tokens from `start` to the end of the span that it stands in; 0 outside of spans."""
        return next((span.end - start for span in self.spans if span.start <= start < span.end), 0)

    def num_cached(self, num_cached_tokens: int) -> int:
        """Tokens of items among the first so many."""
        return sum(min(p.end, num_cached_tokens) - p.offset for p in self.placeholders if p.offset < num_cached_tokens)

    def num_tokens(self, modality: Modality) -> int:
        """Tokens of items of a modality."""
        return sum(item.num_tokens for item in self.items if item.modality is modality)


#: Of a prompt of text alone.
NO_MEDIA = PromptMedia()


@dataclass(frozen=True, slots=True)
class EmbeddingSlice:
    """Rows of an item's embeddings that stand for tokens of a step."""

    position: int  # of the first token in its sequence
    num_rows: int
    first_row: int
    embeddings: Embeddings


@dataclass(frozen=True, slots=True)
class FetchOrder:
    """Embeddings to be had from an encoder."""

    number: int  # names the order
    key: bytes
    encoder_id: str
    lease_id: str
    num_tokens: int
    modality: Modality


class Fetcher(Protocol):
    """What the step loop needs of the fetcher of embeddings. Each order ends in one call of `EngineCore.deliver`, unless it is
    cancelled."""

    def submit(self, orders: Sequence[FetchOrder], cancelled: Sequence[int]) -> None:
        """Begin orders and cancel earlier ones, by number. Called on the loop's thread; must return at once."""
        ...
