"""Media from a request to ids, ranges and references: a real frontend, a fake encoder, real gRPC between them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import support.builders.media_files as media
from grpc.aio import AioRpcError
from support.builders.frontend import Bench, chat_request, frontend_bench
from support.builders.tokenizer import write_model
from support.drivers.media_frontend import family_bench
from support.fakes.encoder import SCOPE, FakeEncoder
from support.grpc_server import serving
from triptych.errors import InvalidRequestError, ServiceUnavailableError, TriptychError
from triptych.status import from_rpc_error
from triptych.v1 import common_pb2, generation_pb2, preprocess_pb2
from triptych_common.media.key import canonical_options, media_key
from triptych_common.rpc.principal import Principal
from triptych_common.rpc.structs import to_struct
from triptych_common.rpc.tensors import to_numpy

IMAGE, AUDIO, VIDEO = common_pb2.MODALITY_IMAGE, common_pb2.MODALITY_AUDIO, common_pb2.MODALITY_VIDEO
Item = common_pb2.MediaItem


def chat(*parts: str | Item, **fields: Any) -> generation_pb2.ChatRequest:
    content = [
        generation_pb2.ContentPart(text=part) if isinstance(part, str) else generation_pb2.ContentPart(media=part) for part in parts
    ]
    return chat_request(messages=[generation_pb2.ChatMessage(role="user", content=content)], **fields)


async def preprocess(bench: Bench, request: generation_pb2.ChatRequest, tenant: str = "") -> preprocess_pb2.PreprocessResponse:
    context = common_pb2.CallContext(tenant=tenant)
    return await bench.preprocess.Preprocess(preprocess_pb2.PreprocessRequest(chat=request, context=context))


async def error_of(bench: Bench, request: generation_pb2.ChatRequest, tenant: str = "") -> TriptychError:
    with pytest.raises(AioRpcError) as caught:
        await preprocess(bench, request, tenant)
    return from_rpc_error(caught.value)


async def test_an_image_becomes_ranges_and_a_reference() -> None:
    content = media.image()
    async with family_bench() as (bench, encoder):
        response = await preprocess(bench, chat(Item(modality=IMAGE, data=content), "What is this?"))
        (found,) = response.placeholders
        (ref,) = response.media
        assert (found.length, found.media_index) == (16, 0)
        assert len(set(response.token_ids[found.offset : found.offset + 16])) == 1
        assert ref.key == media_key(SCOPE, IMAGE, content)
        assert ref.encoder_instance_id == encoder.instance.id
        assert response.prompt == "<|im_start|>user\n<image>\nWhat is this?<|im_end|>\n<|im_start|>assistant\n"
        assert encoder.requests == [], "nothing is encoded by preprocessing"


async def test_positions_get_what_they_need() -> None:
    async with family_bench("qwen2_5_vl") as (bench, _):
        items = [Item(modality=VIDEO, data=media.video()), Item(modality=IMAGE, data=media.image(100, 60))]
        response = await preprocess(bench, chat(items[0], "and", items[1], "?"))
    layouts = [{named.name: to_numpy(named.tensor).tolist() for named in ref.layout} for ref in response.media]
    assert layouts == [{"video_grid_thw": [[2, 4, 4]], "second_per_grid_ts": [1.0]}, {"image_grid_thw": [[1, 4, 8]]}]
    assert [(found.media_index, found.length) for found in response.placeholders] == [(0, 8), (1, 8)]


async def test_sounds_by_bytes_and_several_items() -> None:
    async with family_bench("qwen2_audio") as (bench, _):
        items = [Item(modality=AUDIO, data=media.sound(length, rate)) for length, rate in ((24_000, 16_000), (22_050, 44_100))]
        response = await preprocess(bench, chat(items[0], "and", items[1]))
    assert [(found.media_index, found.length) for found in response.placeholders] == [(0, 37), (1, 12)]


async def test_options_are_part_of_the_key_and_of_the_size() -> None:
    content, options = media.image(200, 150), {"size": {"shortest_edge": 3136, "longest_edge": 3136}}
    async with family_bench("qwen2_5_vl") as (bench, _):
        plain = await preprocess(bench, chat(Item(modality=IMAGE, data=content), "?"))
        own = to_struct({"images_kwargs": options})
        small = await preprocess(bench, chat(Item(modality=IMAGE, data=content, processor_options=own), "?"))
    assert small.placeholders[0].length < plain.placeholders[0].length
    assert small.media[0].key == media_key(SCOPE, IMAGE, content, canonical_options(options))


async def test_salts_keep_keys_apart() -> None:
    content = media.image()
    async with family_bench() as (bench, _):
        options = generation_pb2.GenerationOptions(cache_salt="a tenant")
        response = await preprocess(bench, chat(Item(modality=IMAGE, data=content), "?", options=options))
    assert response.media[0].key == media_key(SCOPE, IMAGE, content, "", Principal().scoped_salt("a tenant"))


async def test_principals_share_neither_names_nor_keys_whatever_their_salts() -> None:
    named, name = Item(modality=IMAGE, data=media.image(), uuid="cat"), Item(modality=IMAGE, uuid="cat")
    options = generation_pb2.GenerationOptions(cache_salt="salt")
    async with family_bench() as (bench, _):
        chat_as = bench.frontend._preprocessor.chat
        first = await chat_as(chat(named, "?", options=options), Principal("first"))
        with pytest.raises(InvalidRequestError, match="is not known here"):
            await chat_as(chat(name, "?", options=options), Principal("second"))
        with pytest.raises(InvalidRequestError, match="is not known here"):
            await chat_as(chat(name, "?", options=options))
        second = await chat_as(chat(named, "?", options=options), Principal("second"))
        again = await chat_as(chat(name, "?", options=options), Principal("first"))
        for prompt in (first, second, again):
            prompt.release()
    assert first.media[0].key == again.media[0].key != second.media[0].key


async def test_tenants_share_neither_names_nor_keys_where_nothing_is_generated() -> None:
    named, name = chat(Item(modality=IMAGE, data=media.image(), uuid="cat"), "?"), chat(Item(modality=IMAGE, uuid="cat"), "?")
    async with family_bench() as (bench, _):
        first = await preprocess(bench, named, "first")
        unknown = [await error_of(bench, name, tenant) for tenant in ("second", "")]
        second = await preprocess(bench, named, "second")
        again = await preprocess(bench, name, "first")
    assert all("is not known here" in error.message for error in unknown)
    assert first.media[0].key == again.media[0].key != second.media[0].key


async def test_names_stand_for_content_that_was_seen() -> None:
    content, other = media.image(), media.image(20, 20)
    async with family_bench() as (bench, _):
        unknown = await error_of(bench, chat(Item(modality=IMAGE, uuid="cat"), "?"))
        first = await preprocess(bench, chat(Item(modality=IMAGE, data=content, uuid="cat"), "?"))
        again = await preprocess(bench, chat(Item(modality=IMAGE, uuid="cat"), "?"))
        salted = generation_pb2.GenerationOptions(cache_salt="another tenant")
        foreign = await error_of(bench, chat(Item(modality=IMAGE, uuid="cat"), "?", options=salted))
        changed = await preprocess(bench, chat(Item(modality=IMAGE, data=other, uuid="cat"), "?"))
        after = await preprocess(bench, chat(Item(modality=IMAGE, uuid="cat"), "?"))
    assert unknown.field == foreign.field == "messages[0].content[0].media.uuid"
    assert again.media[0].key == first.media[0].key == media_key(SCOPE, IMAGE, content)
    assert after.media[0].key == changed.media[0].key == media_key(SCOPE, IMAGE, other)


@pytest.mark.parametrize(
    ("family", "item", "field", "reason"),
    [
        ("llava_siglip", Item(modality=IMAGE, data=media.archive()), "", "no image of a known format"),
        ("llava_siglip", Item(modality=IMAGE, data=media.huge_png()), "", "60000x60000"),
        ("llava_siglip", Item(modality=IMAGE, data=b""), "", "empty file"),
        ("llava_siglip", Item(modality=IMAGE), "", "needs data, a url, an upload_id, or the uuid"),
        ("llava_siglip", Item(data=media.image()), ".modality", "must be set"),
        ("llava_siglip", Item(modality=AUDIO, data=media.sound()), "", "takes text, image, and .* is audio"),
        ("llava_siglip", Item(modality=IMAGE, data=media.image(), uuid="x" * 300), ".uuid", "at most 256 characters"),
        ("llava_siglip", Item(modality=IMAGE, url="http://127.0.0.1:1/a.png"), ".url", "private, loopback"),
        ("llava_siglip", Item(modality=IMAGE, url="file:///etc/passwd"), ".url", "does not allow"),
        (
            "llava_siglip",
            Item(modality=IMAGE, data=media.image(), processor_options=to_struct({"size": float("nan")})),
            ".processor_options",
            "JSON does not have",
        ),
        (
            "llava_siglip",
            Item(modality=IMAGE, data=media.image(), processor_options=to_struct({"colour": 1})),
            ".processor_options",
            "no option 'colour'",
        ),
        (
            "qwen2_5_vl",
            Item(modality=IMAGE, data=media.image(), processor_options=to_struct({"fps": 1})),
            ".processor_options",
            "no item of this request is of a modality that 'fps' is for",
        ),
        ("qwen2_5_vl", Item(modality=IMAGE, data=media.image(10_000, 3)), "", "aspect ratio"),
        ("qwen2_audio", Item(modality=AUDIO, data=media.sound(10)), "", "messages"),
        ("qwen2_audio", Item(modality=AUDIO, data=media.sound(), format="mp3"), ".format", "declared as mp3, and the file is wav"),
    ],
)
async def test_bad_items_are_refused_by_name(family: str, item: Item, field: str, reason: str) -> None:
    async with family_bench(family) as (bench, encoder):
        error = await error_of(bench, chat("Look:", item))
        assert isinstance(error, InvalidRequestError)
        assert error.field == f"messages[0].content[1].media{field}"
        assert re.search(reason, error.message)
        assert encoder.requests == []


async def test_more_items_than_allowed_are_refused() -> None:
    image = Item(modality=IMAGE, data=media.image())
    async with family_bench(max_media_items=2) as (bench, _):
        error = await error_of(bench, chat(image, image, image))
    assert (error.field, error.limit, error.value) == ("messages[0].content[2].media", "2", "3")
    sound = Item(modality=AUDIO, data=media.sound())
    async with family_bench("audioflamingo3") as (bench, _):
        error = await error_of(bench, chat(sound, sound))
    assert "at most 1 audio per request" in error.message


async def test_text_models_refuse_media() -> None:
    async with frontend_bench() as bench:
        error = await error_of(bench, chat("Look:", Item(modality=IMAGE, data=media.image())))
    assert isinstance(error, InvalidRequestError)
    assert (error.field, error.limit) == ("messages[0].content[1].media", "text")
    assert "takes text only" in error.message


async def test_models_whose_media_are_not_served_say_why(tmp_path: Path) -> None:
    config = {
        "model_type": "phi4_multimodal",
        "vision_config": {},
        "audio_config": {},
        "processor_class": "Phi4MultimodalProcessor",
    }
    async with frontend_bench(model=write_model(tmp_path, **config)) as bench:
        error = await error_of(bench, chat("Look:", Item(modality=IMAGE, data=media.image())))
    assert isinstance(error, InvalidRequestError)
    assert "takes text only here (its pictures and sounds each need an adapter" in error.message


async def test_without_an_encoder_media_wait_and_text_does_not() -> None:
    async with family_bench(encoder_addresses=()) as (bench, _):
        error = await error_of(bench, chat(Item(modality=IMAGE, data=media.image())))
        assert isinstance(error, ServiceUnavailableError)
        assert "encoder_addresses" in error.message
        assert (await preprocess(bench, chat("Hi"))).token_ids


async def test_an_encoder_of_another_model_is_not_used() -> None:
    path = media.checkpoint("llava_siglip")
    stranger = FakeEncoder(common_pb2.ModelInfo(name="other", fingerprint="f" * 64))
    async with serving(stranger.register) as address, frontend_bench(model=path, encoder_addresses=(address,)) as bench:
        error = await error_of(bench, chat(Item(modality=IMAGE, data=media.image())))
    assert isinstance(error, ServiceUnavailableError)
    assert "another model: other" in error.message
