"""Converts the media of a request from protobuf to the engine's own types and back. Checks what depends on the model's traits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from triptych.errors import InvalidRequestError, TriptychError, UnimplementedError
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.rpc.tensors import to_numpy

from triptych_engine.media.item import (
    NO_MEDIA,
    Bidirectional,
    EmbeddingSource,
    MediaItem,
    MediaTraits,
    Modality,
    Placeholder,
    PromptMedia,
    Span,
)
from triptych_engine.scheduling.output import MediaUsage

_MODALITIES = {
    common_pb2.MODALITY_IMAGE: Modality.IMAGE,
    common_pb2.MODALITY_AUDIO: Modality.AUDIO,
    common_pb2.MODALITY_VIDEO: Modality.VIDEO,
}
_SOURCES = {
    EmbeddingSource.ENCODER: common_pb2.EMBEDDING_SOURCE_ENCODER,
    EmbeddingSource.ENGINE: common_pb2.EMBEDDING_SOURCE_ENGINE,
    EmbeddingSource.PREFIX_CACHE: common_pb2.EMBEDDING_SOURCE_PREFIX_CACHE,
}
_KEY_BYTES = 32
#: Layouts with the number of an item's patches along time, height and width.
_GRIDS = ("image_grid_thw", "video_grid_thw")
#: Upper bound of the numbers in a layout, per embedding of the item. Audio has slightly more than 13 frames per embedding at most.
_MAX_PER_EMBEDDING = 64


def to_prompt_media(message: engine_pb2.EngineRequest, prompt: Sequence[int], traits: MediaTraits | str) -> PromptMedia:
    """Check and convert the media of a request.

    Args:
        traits: traits of a model that takes media; for other models the reason why media are refused.

    Raises:
        InvalidRequestError: a field does not fit the prompt or the model; the error names the field.
        UnimplementedError: the model takes no media, or none of a modality.
    """
    if isinstance(traits, str):
        if message.media or message.placeholders:
            raise UnimplementedError(traits, field="media")
        return NO_MEDIA
    items = [_item(ref, index, traits) for index, ref in enumerate(message.media)]
    if traits.num_encoder_states:
        return _beside(items, message, traits)
    placeholders = _placeholders(message.placeholders, items, len(prompt))
    _check_tokens(prompt, placeholders, traits)
    for item in items:
        if not item.num_tokens:
            raise InvalidRequestError(f"media[{item.index}] has no placeholders", field=f"media[{item.index}]")
        _check_layout(item, traits)
    if not items:
        return NO_MEDIA
    return PromptMedia(tuple(items), tuple(placeholders), tuple(_spans(prompt, placeholders, traits.bidirectional)))


def _beside(items: list[MediaItem], message: engine_pb2.EngineRequest, traits: MediaTraits) -> PromptMedia:
    """The one item to whose embeddings all tokens attend. Raises InvalidRequestError."""
    if len(items) != 1:
        kind = traits.modalities[0].value
        told = f"this model's decoder attends to one item, {kind}, which each request must have; given: {len(items)}"
        raise InvalidRequestError(told, field="media", limit=1, value=len(items))
    if message.placeholders:
        told = "this model's decoder attends to the item; there are no placeholders for it in the prompt"
        raise InvalidRequestError(told, field="placeholders", limit=0, value=len(message.placeholders))
    items[0].num_tokens = traits.num_encoder_states
    return PromptMedia(tuple(items), is_beside=True)


def _item(ref: common_pb2.MediaRef, index: int, traits: MediaTraits) -> MediaItem:
    field = f"media[{index}]"
    modality = _MODALITIES.get(ref.modality)
    if modality not in traits.modalities:
        known = ", ".join(known.value for known in traits.modalities)
        name = modality.value if modality else "of no modality"
        raise UnimplementedError(f"{field} is {name}; this model takes {known}", field=f"{field}.modality", limit=known, value=name)
    if len(ref.key) != _KEY_BYTES:
        raise InvalidRequestError(
            f"{field}.key must have {_KEY_BYTES} bytes; given: {len(ref.key)}",
            field=f"{field}.key",
            limit=_KEY_BYTES,
            value=len(ref.key),
        )
    try:
        layout = {named.name: to_numpy(named.tensor) for named in ref.layout}
    except TriptychError as error:
        raise InvalidRequestError(f"{field}.layout: {error.message}", field=f"{field}.layout") from error
    return MediaItem(index, modality, ref.key, ref.encoder_instance_id, ref.lease_id, layout)


def _placeholders(
    ranges: Sequence[common_pb2.PlaceholderRange], items: list[MediaItem], num_prompt_tokens: int
) -> list[Placeholder]:
    """Check and convert the ranges. Sets each item's number of tokens and the end of its last range."""
    placeholders: list[Placeholder] = []
    end = 0
    for index, one in enumerate(ranges):
        field = f"placeholders[{index}]"
        if one.media_index >= len(items):
            message = f"{field}.media_index is {one.media_index}; the request has {len(items)} media items"
            raise InvalidRequestError(message, field=f"{field}.media_index", limit=len(items) - 1, value=one.media_index)
        if one.offset < end:
            message = f"{field}.offset must be at least {end}, where the range before it ends; given: {one.offset}"
            raise InvalidRequestError(message, field=f"{field}.offset", limit=end, value=one.offset)
        end = one.offset + one.length
        if not one.length or end > num_prompt_tokens:
            message = f"{field} must have tokens and end within the prompt's {num_prompt_tokens}; given: {one.length}, to {end}"
            raise InvalidRequestError(message, field=f"{field}.length", limit=num_prompt_tokens, value=end)
        item = items[one.media_index]
        placeholders.append(Placeholder(one.offset, one.length, item, item.num_tokens))
        item.num_tokens += one.length
        item.end = end
    return placeholders


def _check_tokens(prompt: Sequence[int], placeholders: Sequence[Placeholder], traits: MediaTraits) -> None:
    """Check that placeholder tokens are exactly where the ranges are, so that no item is silently ignored."""
    ids = np.asarray(prompt, np.int64)
    expected = np.zeros(len(ids), bool)
    for index, placeholder in enumerate(placeholders):
        expected[placeholder.offset : placeholder.end] = True
        allowed = np.fromiter(traits.placeholder_token_ids[placeholder.item.modality], np.int64)
        wrong = np.flatnonzero(~np.isin(ids[placeholder.offset : placeholder.end], allowed))
        if len(wrong):
            position = placeholder.offset + int(wrong[0])
            message = (
                f"placeholders[{index}] covers prompt_token_ids[{position}], which is {prompt[position]}; "
                f"{placeholder.item.modality.value} stands at tokens {sorted(allowed.tolist())}"
            )
            raise InvalidRequestError(message, field=f"placeholders[{index}]", limit=allowed.tolist(), value=prompt[position])
    all_ids = frozenset[int]().union(*traits.placeholder_token_ids.values())
    alone = np.flatnonzero(np.isin(ids, np.fromiter(all_ids, np.int64)) & ~expected)
    if len(alone):
        position = int(alone[0])
        message = f"prompt_token_ids[{position}] stands for media ({prompt[position]}), and no placeholder range covers it"
        raise InvalidRequestError(message, field="prompt_token_ids", value=prompt[position])


def _check_layout(item: MediaItem, traits: MediaTraits) -> None:
    """Check that the layouts which positions depend on are present and fit the item: the modeling code does not check them."""
    for name in traits.layout_names.get(item.modality, ()):
        if name not in item.layout:
            field = f"media[{item.index}].layout"
            raise InvalidRequestError(f"{field} lacks {name}, which this model's positions depend on", field=field, value=name)
    for name, array in item.layout.items():
        field = f"media[{item.index}].layout[{name}]"
        limit = _MAX_PER_EMBEDDING * (item.num_tokens + 1)
        if array.ndim < 1 or len(array) != 1 or not (array >= 0).all() or not (array <= limit).all():
            message = f"{field} must describe one item, by numbers from 0 to {limit}; given: {array.tolist()}"
            raise InvalidRequestError(message, field=field, limit=limit, value=array.tolist())
        if name in _GRIDS:
            num_embeds = int(array.prod(dtype=np.int64)) // traits.spatial_merge_size**2 if array.shape == (1, 3) else 0
            if num_embeds != item.num_tokens:
                message = f"{field} is {array.tolist()}, the grid of {num_embeds} embeddings; the item has {item.num_tokens}"
                raise InvalidRequestError(message, field=field, limit=item.num_tokens, value=num_embeds)


def _spans(prompt: Sequence[int], placeholders: Sequence[Placeholder], kind: Bidirectional) -> list[Span]:
    if kind is Bidirectional.NONE:
        return []
    if kind is Bidirectional.PROMPT:
        return [_span(prompt, placeholders, 0, len(prompt))]
    modalities = {Modality.IMAGE, Modality.VIDEO} if kind is Bidirectional.VISION_IN_WINDOWS else {Modality.IMAGE}
    bounds: list[tuple[int, int]] = []
    for placeholder in placeholders:
        if placeholder.item.modality not in modalities:
            continue
        if bounds and bounds[-1][1] == placeholder.offset:  # the modeling code joins adjacent ranges, also of different items
            bounds[-1] = bounds[-1][0], placeholder.end
        else:
            bounds.append((placeholder.offset, placeholder.end))
    return [_span(prompt, placeholders, start, end) for start, end in bounds]


def _span(prompt: Sequence[int], placeholders: Sequence[Placeholder], start: int, end: int) -> Span:
    digest = hashlib.sha256(np.asarray(prompt[start:end], "<u4").tobytes())
    for placeholder in placeholders:
        if start <= placeholder.offset < end:
            place = np.array([placeholder.offset - start, placeholder.length, placeholder.first_row], "<u8")
            digest.update(placeholder.item.identity + place.tobytes())
    return Span(start, end, digest.digest())


def put_media_usage(message: engine_pb2.SequenceOutput, media: MediaUsage) -> None:
    """Add the usage of the media to a last output."""
    message.usage.image_tokens = media.num_tokens.get(Modality.IMAGE, 0)
    message.usage.audio_tokens = media.num_tokens.get(Modality.AUDIO, 0)
    message.usage.video_tokens = media.num_tokens.get(Modality.VIDEO, 0)
    message.usage.cached_media_tokens = media.num_cached_tokens
    for fetch in media.fetches:
        source = _SOURCES[fetch.source] if fetch.source is not None else common_pb2.EMBEDDING_SOURCE_UNSPECIFIED
        message.media.append(engine_pb2.MediaFetch(source=source, fetch_s=fetch.fetch_s, num_bytes=fetch.num_bytes))
