"""Raw prompts with media: placeholders in a text or among token ids become what they become in a chat."""

from __future__ import annotations

import re
from typing import Any

import pytest
import support.builders.media_files as media
from grpc.aio import AioRpcError
from support.builders.frontend import Bench, chat_request, frontend_bench
from support.builders.multimodal import FAMILIES
from support.builders.tokenizer import IM_START_ID
from support.drivers.media_frontend import AUDIO, IMAGE, VIDEO, Item, complete_request, family_bench
from tokenizers.processors import TemplateProcessing
from triptych.errors import InvalidRequestError, ServiceUnavailableError, TriptychError
from triptych.status import from_rpc_error
from triptych.v1 import generation_pb2, preprocess_pb2

Response = preprocess_pb2.PreprocessResponse
FILES = {
    IMAGE: [media.image(60, 50), media.image(33, 90)],
    AUDIO: [media.sound(16_000), media.sound(9_000)],
    VIDEO: [media.video(20), media.video(12)],
}
TWO_PICTURES = [Item(modality=IMAGE, data=data) for data in FILES[IMAGE]]
PICTURE, SOUND = TWO_PICTURES[0], Item(modality=AUDIO, data=FILES[AUDIO][0])


async def of_chat(bench: Bench, items: list[Item]) -> Response:
    parts = [part for index, item in enumerate(items) for part in ({"media": item}, {"text": f"and {index}\n"})]
    message = generation_pb2.ChatMessage(role="user", content=[generation_pb2.ContentPart(**part) for part in parts])
    return await bench.preprocess.Preprocess(preprocess_pb2.PreprocessRequest(chat=chat_request(messages=[message])))


async def of_complete(bench: Bench, prompt: str | list[int], *items: Item, **fields: Any) -> Response:
    request = preprocess_pb2.PreprocessRequest(complete=complete_request(prompt, *items, **fields))
    return await bench.preprocess.Preprocess(request)


async def error_of(bench: Bench, prompt: str | list[int], *items: Item) -> TriptychError:
    with pytest.raises(AioRpcError) as caught:
        await of_complete(bench, prompt, *items)
    return from_rpc_error(caught.value)


async def ids_of(bench: Bench, text: str) -> list[int]:
    request = preprocess_pb2.TokenizeRequest(text=text, add_special_tokens=False)
    return [*(await bench.preprocess.Tokenize(request)).token_ids]


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_rendered_prompt_is_the_chats_prompt_as_text_and_as_token_ids(family: str) -> None:
    async with family_bench(family) as (bench, encoder):
        modalities = sorted(bench.frontend._media.expander.modalities)
        max_items = 1 if family == "audioflamingo3" else 2
        items = [Item(modality=modality, data=data) for modality in modalities for data in FILES[modality][:max_items]]
        chat = await of_chat(bench, items)
        given = await ids_of(bench, chat.prompt)
        by_text = await of_complete(bench, chat.prompt, *items)
        by_ids = await of_complete(bench, given, *items)
        assert encoder.requests == [], "nothing is encoded by preprocessing"
    assert by_text == chat
    assert by_ids == chat
    assert len(chat.media) == len(items)
    assert len(chat.token_ids) > len(given)


async def test_a_modality_takes_its_own_placeholders_in_order() -> None:
    picture, video = Item(modality=IMAGE, data=FILES[IMAGE][0]), Item(modality=VIDEO, data=FILES[VIDEO][0])
    other = Item(modality=IMAGE, data=FILES[IMAGE][1])
    async with family_bench("qwen2_5_vl") as (bench, _):
        in_order = await of_complete(bench, "<|image_pad|>a<|video_pad|>b<|image_pad|>", picture, video, other)
        by_modality = await of_complete(bench, "<|image_pad|>a<|video_pad|>b<|image_pad|>", picture, other, video)
    assert in_order.token_ids == by_modality.token_ids
    assert [found.offset for found in in_order.placeholders] == [found.offset for found in by_modality.placeholders]
    assert [found.media_index for found in in_order.placeholders] == [0, 1, 2]
    assert [found.media_index for found in by_modality.placeholders] == [0, 2, 1]
    assert [ref.key for ref in by_modality.media] == [in_order.media[index].key for index in (0, 2, 1)]


async def test_the_tokenizer_adds_its_special_tokens_unless_told_otherwise() -> None:
    async with family_bench() as (bench, _):
        bench.frontend._tokenizer.backend.post_processor = TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
        without = await of_complete(bench, "<image>What?", PICTURE)
        added = await of_complete(bench, "<image>What?", PICTURE, add_special_tokens=True)
    assert [*added.token_ids] == [IM_START_ID, *without.token_ids]
    assert added.placeholders[0].offset == without.placeholders[0].offset + 1


MISMATCHES: list[tuple[str, str, list[Item], int, int, str]] = [
    ("llava_siglip", "What is this?", [PICTURE], 0, 1, "one image for each '<image>'"),
    ("llava_siglip", "<image><image> What?", [PICTURE], 2, 1, "which has 2; given: 1"),
    ("llava_siglip", "<image> What?", TWO_PICTURES, 1, 2, "which has 1; given: 2"),
    ("qwen2_5_vl", "<|image_pad|><|video_pad|>", TWO_PICTURES, 1, 2, "one image for each '<\\|image_pad\\|>'"),
    ("qwen2_5_vl", "<|image_pad|><|video_pad|>", [PICTURE], 1, 0, "one video for each '<\\|video_pad\\|>'"),
    ("qwen2_5_omni", "<|AUDIO|><|AUDIO|>", [PICTURE, SOUND], 0, 1, "one image for each"),
]


@pytest.mark.parametrize("by_ids", [False, True])
@pytest.mark.parametrize(("family", "prompt", "items", "limit", "value", "reason"), MISMATCHES)
async def test_as_many_items_as_placeholders(
    family: str, prompt: str, items: list[Item], limit: int, value: int, reason: str, by_ids: bool
) -> None:
    # What is fetched for it would be fetched in vain.
    unreachable = [Item(modality=item.modality, url="http://127.0.0.1:1/a.png") for item in items]
    async with family_bench(family) as (bench, _):
        error = await error_of(bench, await ids_of(bench, prompt) if by_ids else prompt, *unreachable)
        assert bench.frontend._media.budget.used_bytes == 0
    assert isinstance(error, InvalidRequestError)
    assert (error.field, error.limit, error.value) == ("media", str(limit), str(value))
    assert re.search(reason, error.message), error.message


@pytest.mark.parametrize(
    ("item", "field", "reason"),
    [
        (Item(modality=IMAGE, data=media.archive()), "media[1]", "media\\[1\\].* no image of a known format"),
        (Item(modality=IMAGE, url="http://127.0.0.1:1/a.png"), "media[1].url", "private, loopback"),
        (Item(modality=IMAGE, uuid="cat"), "media[1].uuid", "is not known here"),
        (Item(modality=IMAGE, data=media.image(), format="gif"), "media[1].format", "declared as gif"),
    ],
)
async def test_a_bad_item_is_refused_by_its_index(item: Item, field: str, reason: str) -> None:
    async with family_bench() as (bench, _):
        error = await error_of(bench, "<image> and <image>", PICTURE, item)
        assert bench.frontend._media.budget.used_bytes == 0
    assert isinstance(error, InvalidRequestError)
    assert error.field == field
    assert re.search(reason, error.message), error.message


async def test_modalities_that_the_model_does_not_take_are_refused_by_name() -> None:
    async with family_bench() as (bench, _):
        sound = await error_of(bench, "<image>", PICTURE, SOUND)
        none = await error_of(bench, "<image>", PICTURE, Item(data=media.image()))
        too_many = await error_of(bench, "<image>" * 99, *[PICTURE] * 99)
    async with frontend_bench() as bench:
        text_only = await error_of(bench, "Look: <image>", PICTURE)
    assert (sound.field, sound.limit, sound.value) == ("media[1]", "text, image", "audio")
    assert (none.field, none.value) == ("media[1].modality", "")
    assert too_many.field.startswith("media[")
    assert "max_media_items" in too_many.message
    assert (text_only.field, text_only.limit, text_only.value) == ("media[0]", "text", "image")
    assert "takes text only" in text_only.message


async def test_without_an_encoder_media_are_refused() -> None:
    async with family_bench(encoder_addresses=()) as (bench, _):
        error = await error_of(bench, "<image>", PICTURE)
    assert isinstance(error, ServiceUnavailableError)
    assert error.field == "media[0]"


async def test_further_tokens_of_embeddings_are_refused() -> None:
    async with family_bench("gemma3") as (bench, _):
        error = await error_of(bench, "<start_of_image> <image_soft_token>", PICTURE)
        by_ids = await error_of(bench, await ids_of(bench, "<start_of_image> <image_soft_token>"), PICTURE)
    assert (error.field, by_ids.field) == ("text", "token_ids")
    assert isinstance(error, InvalidRequestError)
    assert "placeholder tokens; its media items take" in error.message


async def test_placeholders_without_media_stay_what_they_are() -> None:
    async with family_bench() as (bench, _):
        given = await ids_of(bench, "<image> What?")
        by_text, by_ids = await of_complete(bench, "<image> What?"), await of_complete(bench, given)
    assert [*by_text.token_ids] == [*by_ids.token_ids] == given
    assert not by_text.placeholders
    assert not by_text.media


async def test_token_ids_must_be_in_the_vocabulary_also_beside_media() -> None:
    async with family_bench() as (bench, _):
        given = await ids_of(bench, "<image> What?")
        error = await error_of(bench, [*given, 99_999], PICTURE)
    assert (error.field, error.value) == (f"token_ids.ids[{len(given)}]", "99999")
