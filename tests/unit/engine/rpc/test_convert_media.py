"""Which media the engine takes and which it refuses, field by field."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.builders.engine import PLACEHOLDER, a_media_message, traits
from triptych.errors import InvalidRequestError, TriptychError, UnimplementedError
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.rpc.tensors import from_numpy
from triptych_engine.media.item import TEXT_ONLY, Bidirectional, EmbeddingSource, MediaTraits, Modality, PromptMedia
from triptych_engine.rpc.convert_media import put_media_usage, to_prompt_media
from triptych_engine.scheduling.output import MediaFetch, MediaUsage

CAT, DOG = (b"cat", (2, 3)), (b"dog", (4,))
GRID_TRAITS = traits(layout_names={Modality.IMAGE: ("image_grid_thw",)}, spatial_merge_size=2)


def convert(message: engine_pb2.EngineRequest, of_model: MediaTraits | str | None = None) -> PromptMedia:
    return to_prompt_media(message, list(message.prompt_token_ids), of_model or traits())


def with_layout(message: engine_pb2.EngineRequest, array: np.ndarray, name: str = "image_grid_thw") -> engine_pb2.EngineRequest:
    message.media[0].layout.add(name=name, tensor=from_numpy(array))
    return message


def test_ranges_become_rows_of_items():
    media = convert(a_media_message("r", [1, CAT, 2, DOG]))
    assert [(p.offset, p.length, p.item.index, p.first_row) for p in media.placeholders] == [
        (1, 2, 0, 0),
        (4, 3, 0, 2),
        (8, 4, 1, 0),
    ]
    assert [(item.num_tokens, item.end) for item in media.items] == [(5, 7), (4, 12)]
    assert media.end == 12


def test_neighbouring_pictures_are_one_span():
    media = convert(a_media_message("r", [1, DOG, DOG, 2, CAT]), traits(Bidirectional.IMAGES))
    assert [(span.start, span.end) for span in media.spans] == [(1, 9), (10, 12), (13, 16)]


def test_text_needs_nothing_of_a_model_with_media():
    assert not convert(a_media_message("r", [1, 2])).items


def change(**fields: int) -> Callable[[engine_pb2.EngineRequest], None]:
    def apply(message: engine_pb2.EngineRequest) -> None:
        for name, value in fields.items():
            setattr(message.placeholders[-1], name, value)

    return apply


@pytest.mark.parametrize(
    ("alter", "field"),
    [
        (change(offset=3), "placeholders[2].offset"),
        (change(length=5), "placeholders[2].length"),
        (change(length=0), "placeholders[2].length"),
        (change(length=2**32 - 1), "placeholders[2].length"),
        (change(media_index=2), "placeholders[2].media_index"),
        (change(offset=7), "placeholders[2]"),
        (change(length=3), "prompt_token_ids"),
        (lambda message: message.placeholders.pop(), "prompt_token_ids"),
        (lambda message: message.media.add(modality=common_pb2.MODALITY_IMAGE, key=b"." * 32), "media[2]"),
        (lambda message: setattr(message.media[1], "key", b"short"), "media[1].key"),
        (
            lambda message: with_layout(message, np.array([np.nan], np.float32), "second_per_grid_ts"),
            "media[0].layout[second_per_grid_ts]",
        ),
        (lambda message: with_layout(message, np.array([10**15])), "media[0].layout[image_grid_thw]"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(alter: Callable[[engine_pb2.EngineRequest], object], field: str):
    message = a_media_message("r", [1, CAT, 2, DOG])
    alter(message)
    with pytest.raises(InvalidRequestError) as caught:
        convert(message)
    assert caught.value.field == field


def test_a_model_with_text_alone_says_so():
    with pytest.raises(UnimplementedError, match="serves text only"):
        convert(a_media_message("r", [1, CAT]), TEXT_ONLY)


def test_a_modality_that_the_model_has_no_tokens_for_is_refused():
    message = a_media_message("r", [1, CAT])
    message.media[0].modality = common_pb2.MODALITY_AUDIO
    with pytest.raises(UnimplementedError, match=r"media\[0\] is audio; this model takes image"):
        convert(message)


@pytest.mark.parametrize("grid", [[[1, 4, 5]], [[1, 2, 4]], [[5, 1, 1]], [[20]], [[1, 4, 5], [1, 4, 5]]])
def test_a_grid_is_that_of_its_item(grid: list[list[int]]):
    message = with_layout(a_media_message("r", [1, CAT]), np.array(grid))
    if grid == [[1, 4, 5]]:
        assert convert(message, GRID_TRAITS).items[0].layout["image_grid_thw"].tolist() == grid
    else:
        with pytest.raises(InvalidRequestError, match=r"media\[0\].layout\[image_grid_thw\]"):
            convert(message, GRID_TRAITS)


def test_positions_that_depend_on_a_layout_insist_on_it():
    with pytest.raises(TriptychError, match=r"media\[0\].layout lacks image_grid_thw"):
        convert(a_media_message("r", [1, CAT]), GRID_TRAITS)


def test_the_layout_is_part_of_what_keys_and_values_depend_on():
    one = convert(with_layout(a_media_message("r", [DOG]), np.array([[1, 4, 4]])), GRID_TRAITS)
    other = convert(with_layout(a_media_message("r", [DOG]), np.array([[1, 2, 8]])), GRID_TRAITS)
    assert one.fingerprint(0, 4) != other.fingerprint(0, 4)
    assert PLACEHOLDER in a_media_message("r", [DOG]).prompt_token_ids


def test_what_media_took_travels():
    message = engine_pb2.SequenceOutput()
    fetches = (MediaFetch(EmbeddingSource.ENCODER, 0.5, 64), MediaFetch(None, 0.0, 0))
    put_media_usage(message, MediaUsage({Modality.IMAGE: 5}, 3, fetches))
    assert (message.usage.image_tokens, message.usage.audio_tokens, message.usage.cached_media_tokens) == (5, 0, 3)
    assert (message.media[0].source, message.media[0].fetch_s, message.media[0].num_bytes) == (
        common_pb2.EMBEDDING_SOURCE_ENCODER,
        0.5,
        64,
    )
    assert message.media[1].source == common_pb2.EMBEDDING_SOURCE_UNSPECIFIED


BESIDE = MediaTraits({Modality.AUDIO: frozenset()}, hidden_size=1, num_encoder_states=9)


def a_sound_message(num_items: int = 1) -> engine_pb2.EngineRequest:
    message = engine_pb2.EngineRequest(request_id="r", prompt_token_ids=[1, 2, 3])
    for index in range(num_items):
        message.media.add(modality=common_pb2.MODALITY_AUDIO, key=b"%d" % index * 32, encoder_instance_id="encoder:1")
    return message


def test_an_item_beside_the_prompt():
    media = convert(a_sound_message(), BESIDE)
    assert media.is_beside
    assert [item.num_tokens for item in media.items] == [9]
    assert media.num_tokens(Modality.AUDIO) == 0  # of the prompt
    assert media.end == 1
    assert media.fingerprint(0, 2)
    assert not media.fingerprint(2, 4)  # the block before tells them apart
    assert media.fingerprint(0, 2) == media.identity_beside
    assert media.extra_keys(0, 2) == ((media.items[0].identity.hex(), 0),)


@pytest.mark.parametrize("num_items", [0, 2])
def test_a_decoder_attends_to_one_item(num_items: int):
    with pytest.raises(InvalidRequestError, match=f"one item, audio, which each request must have; given: {num_items}") as caught:
        convert(a_sound_message(num_items), BESIDE)
    assert caught.value.field == "media"


def test_an_item_beside_the_prompt_has_no_placeholders():
    message = a_sound_message()
    message.placeholders.add(offset=0, length=1, media_index=0)
    with pytest.raises(InvalidRequestError, match="no placeholders") as caught:
        convert(message, BESIDE)
    assert caught.value.field == "placeholders"
