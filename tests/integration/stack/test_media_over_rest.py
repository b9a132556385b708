"""Media over REST through a real gateway, frontend and encoder; only the engine is a fake, which fetches what it is told of."""

from __future__ import annotations

import asyncio
import base64
import io
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import av
import httpx
import numpy as np
import pytest
import soundfile
import support.builders.media_files as media
from PIL import Image
from support.builders.frontend import Bench, frontend_bench
from support.drivers.encoder import RunningEncoder, an_encoder
from support.fakes.engine import says
from support.fakes.gateway import client_of
from support.fakes.media_engine import FakeMediaEngine
from support.memory import peak_memory
from support.waiting import until
from triptych_common.model.store import served_name
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

pytestmark = pytest.mark.model
#: What a request about a small file may take at most, in bytes. Three hours of sound, or a picture as large as its header
#: says, would take more.
_MEMORY_LIMIT = 32 << 20


class RestBench:
    """A client of the gateway, and what is behind it."""

    def __init__(self, client: httpx.AsyncClient, model: str, bench: Bench, encoder: RunningEncoder) -> None:
        self.client, self.model, self.bench, self.encoder = client, model, bench, encoder

    async def post(self, *parts: dict[str, Any] | str, **fields: Any) -> httpx.Response:
        content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], **fields}
        return await self.client.post("/v1/chat/completions", json=body)

    async def answer(self, *parts: dict[str, Any] | str, **fields: Any) -> dict[str, Any]:
        response = await self.post(*parts, **fields)
        assert response.status_code == 200, response.text
        whole: dict[str, Any] = response.json()
        assert whole["choices"][0]["finish_reason"] == "length"
        return whole


@asynccontextmanager
async def rest_bench(family: str, encoder_settings: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[RestBench]:
    path = media.checkpoint(family)
    async with an_encoder(path, **(encoder_settings or {})) as encoder:
        addresses = (f"127.0.0.1:{encoder.service.port}",)
        script = says([20, 21, 22])
        async with frontend_bench(
            script, model=path, engine_class=FakeMediaEngine, encoder_addresses=addresses, **settings
        ) as bench:
            app = create_app(GatewaySettings(frontend_addresses=(f"127.0.0.1:{bench.frontend.server.port}",)))
            async with app.router.lifespan_context(app), client_of(app) as client:
                yield RestBench(client, served_name(str(path)), bench, encoder)


def data_url(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image(data: bytes, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data, "image/png")}, **fields}


def audio(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}


def video(data: bytes) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": data_url(data, "video/mp4")}}


def truncated_jpeg() -> bytes:
    file = io.BytesIO()
    Image.effect_noise((300, 200), 60).convert("RGB").save(file, "JPEG")
    return file.getvalue()[:3000]


def three_hours() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(3 * 3600 * 1000, np.int16), 1000, format="FLAC")
    return file.getvalue()


def without_frames() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.start_encoding()
    return file.getvalue()


_BAD = {
    "truncated JPEG": ("llava_siglip", image(truncated_jpeg()), "truncated"),
    "no bytes": ("llava_siglip", image(b""), "empty"),
    "a PNG that says 60000x60000": ("llava_siglip", image(media.huge_png()), "60000x60000"),
    "a zip": ("llava_siglip", image(media.archive()), "no image of a known format"),
    "10000x3 pixels": ("qwen2_5_vl", image(media.image(10_000, 3)), "aspect ratio"),
    "a WAV without samples": ("qwen2_audio", audio(media.sound(0)), "sample"),
    "three hours": ("qwen2_audio", audio(three_hours()), "10800"),
    "a video without frames": ("qwen2_5_vl", video(without_frames()), "frame|video"),
    "a private address": (
        "llava_siglip",
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}},
        "private",
    ),
    "a sound for a model of pictures": ("llava_siglip", audio(media.sound()), "audio"),
}


@pytest.mark.parametrize("name", _BAD)
async def test_bad_media_are_a_400_that_names_the_item_and_the_reason(name: str) -> None:
    family, item, reason = _BAD[name]
    async with rest_bench(family) as bench:
        with peak_memory() as peak:
            response = await bench.post("Look:", item)
        assert peak.num_bytes < _MEMORY_LIMIT
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"].startswith("messages[0].content[1]"), error
        assert "messages[0].content[1]" in error["message"]
        assert any(word in error["message"] for word in reason.split("|")), error
        assert (await bench.answer("Hi"))["usage"]["prompt_tokens_details"]["image_tokens"] == 0


_ODD = {
    "an animation": ("llava_siglip", image(media.animation())),
    "CMYK": ("llava_siglip", image(media.image(50, 60, "JPEG", "CMYK"))),
    "10000x3 pixels": ("llava_siglip", image(media.image(10_000, 3))),
    "one pixel": ("llava_siglip", image(media.image(1, 1))),
    "a WAV whose header lies": ("qwen2_audio", audio(media.lying_wav(12_000, 2**32 - 1))),
}


@pytest.mark.parametrize("name", _ODD)
async def test_odd_media_are_answered(name: str) -> None:
    family, item = _ODD[name]
    async with rest_bench(family) as bench:
        with peak_memory() as peak:
            whole = await bench.answer(item, "What is this?")
        assert peak.num_bytes < _MEMORY_LIMIT
    (report,) = whole["triptych"]["media"]
    assert (report["encoder_cache"], report["source"]) == ("miss", "encoder")
    assert report["num_tokens"] > 0


async def test_the_second_question_is_a_hit() -> None:
    picture = image(media.image())
    async with rest_bench("llava_siglip") as bench:
        first = await bench.answer(picture, "What is this?")
        again = await bench.answer(picture, "And which colour?")
    (miss,), (hit,) = first["triptych"]["media"], again["triptych"]["media"]
    assert (miss["encoder_cache"], miss["source"], hit["encoder_cache"]) == ("miss", "encoder", "hit")
    assert miss["key"] == hit["key"]
    assert miss["encode_ms"] > 0 == hit["encode_ms"]
    assert first["usage"]["prompt_tokens_details"]["image_tokens"] == 16
    assert (first["usage"]["prompt_tokens_details"]["cached_media_tokens"], hit["source"]) == (0, "prefix_cache")
    assert again["usage"]["prompt_tokens_details"]["cached_media_tokens"] == 16


async def test_several_modalities_in_one_conversation() -> None:
    async with rest_bench("qwen2_5_vl") as bench:
        whole = await bench.answer(video(media.video()), "and", image(media.image(100, 60)), "?", n=2)
    details = whole["usage"]["prompt_tokens_details"]
    assert (details["video_tokens"], details["image_tokens"], details["audio_tokens"]) == (8, 8, 0)
    assert [report["modality"] for report in whole["triptych"]["media"]] == ["video", "image"]
    assert len(whole["choices"]) == 2


async def test_more_items_than_the_setting_allows() -> None:
    picture = image(media.image())
    async with rest_bench("llava_siglip", max_media_items=2) as bench:
        response = await bench.post(picture, picture, picture)
    assert response.status_code == 400
    assert "at most 2 media items" in response.json()["error"]["message"]


async def test_a_name_with_other_bytes_is_corrected(caplog: pytest.LogCaptureFixture) -> None:
    async with rest_bench("llava_siglip") as bench:
        first = await bench.answer(image(media.image(), uuid="cat"), "?")
        other = await bench.answer(image(media.image(20, 50), uuid="cat"), "?")
        by_name = await bench.answer({"type": "image_url", "image_url": None, "uuid": "cat"}, "?")
    keys = [whole["triptych"]["media"][0]["key"] for whole in (first, other, by_name)]
    assert keys[0] != keys[1] == keys[2]
    assert "came with other content than before" in caplog.text


async def test_an_embedding_that_is_gone_before_the_engine_came_is_made_again() -> None:
    async with rest_bench("llava_siglip") as bench:
        engine = bench.bench.engine
        assert isinstance(engine, FakeMediaEngine)
        assert bench.encoder.service._pipeline is not None
        fetch, cache = engine._fetch, bench.encoder.service._pipeline.cache

        async def fetch_late(ref: Any) -> bool:
            if not engine.counts["late"]:
                engine.counts["late"] += 1
                await until(lambda: cache.num_leases > 0)  # before that, who asked for it would put it back
                cache.expire(math.inf)
                cache.evict()
            return await fetch(ref)

        engine._fetch = fetch_late  # type: ignore[method-assign]
        whole = await bench.answer(image(media.image()), "What is this?")
    assert engine.counts["lost"] >= 1
    assert whole["triptych"]["media"][0]["encoder_cache"] == "miss"
    assert bench.bench.frontend._encoder_client.counts["again"] == 1


async def test_a_cache_full_of_leases_is_a_429_and_text_goes_on() -> None:
    # Room for one picture: 16 embeddings of 64 numbers or fewer.
    async with rest_bench("llava_siglip", {"cache_memory": 6000}) as bench:
        [held] = await bench.encoder.encode(bench.encoder.item("image", media.image(33, 44)), lease_s=60)
        assert held.lease_id, held.error
        response = await bench.post(image(media.image()), "What is this?")
        assert response.status_code == 429, response.text
        assert response.headers["retry-after"]
        assert "messages[0].content[0]" in response.json()["error"]["message"]
        await bench.answer("Hi")


async def test_an_encoder_that_stopped_leaves_text_alone() -> None:
    async with rest_bench("llava_siglip", encode_timeout_s=5) as bench:
        await bench.encoder.service.drain(0)
        await bench.answer("Hi")
        response = await bench.post(image(media.image()), "What is this?")
        await bench.encoder.service.wake_up()
        await bench.answer(image(media.image()), "What is this?")
    assert response.status_code == 503
    assert "messages[0].content[0]" in response.json()["error"]["message"]


async def test_mixed_requests_while_the_encoder_refuses_now_and_then() -> None:
    async with rest_bench("llava_siglip", {"max_queue": 1}) as bench:

        async def ask(number: int) -> int:
            parts = ["Hi"] if number % 2 else [image(media.image(20 + number, 30)), "What is this?"]
            return (await bench.post(*parts)).status_code

        statuses = await asyncio.gather(*map(ask, range(100)))
        assert set(statuses[1::2]) == {200}
        assert set(statuses[::2]) == {200, 429}
        assert not bench.bench.frontend.num_live_requests
        await bench.bench.frontend._encoder_client.close()
        assert not bench.bench.engine.live


async def test_audio_files_are_transcribed() -> None:
    async with rest_bench("qwen2_audio") as bench:
        form = {"model": bench.model, "language": "en"}
        response = await bench.client.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", media.sound())})
        lying = await bench.client.post("/v1/audio/transcriptions", data=form, files={"file": ("a.mp3", media.sound())})
    assert response.status_code == 200, response.text
    assert response.json()["text"]
    assert response.json()["usage"]["input_token_details"]["audio_tokens"] > 0
    error = lying.json()["error"]
    assert (lying.status_code, error["param"]) == (400, "file")
    assert "mp3" in error["message"]


async def test_speech_is_transcribed_piece_by_piece() -> None:
    async with rest_bench("voxtral") as bench:
        form = {"model": bench.model}
        short = await bench.client.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", media.sound())})
        long = await bench.client.post("/v1/audio/transcriptions", data=form, files={"file": ("a.flac", media.talk(25, 24))})
    assert short.status_code == long.status_code == 200, (short.text, long.text)
    # This model pads each sound to 30 s.
    num_tokens = [one.json()["usage"]["input_token_details"]["audio_tokens"] for one in (short, long)]
    assert num_tokens[1] == 2 * num_tokens[0] > 0


async def test_a_model_without_audio_transcribes_nothing() -> None:
    async with rest_bench("llava_siglip") as bench:
        form = {"model": bench.model}
        response = await bench.client.post("/v1/audio/transcriptions", data=form, files={"file": ("a.wav", media.sound())})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("file")
    assert "audio" in response.json()["error"]["message"]


async def test_pictures_in_anthropics_shape() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(media.image()).decode()}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]
    async with rest_bench("llava_siglip") as bench:
        body = {"model": bench.model, "max_tokens": 3, "messages": [{"role": "user", "content": content}]}
        response = await bench.client.post("/v1/messages", json=body)
        lying = await bench.client.post("/v1/messages", content=response.request.content.replace(b"image/png", b"image/gif"))
        counted = await bench.client.post("/v1/messages/count_tokens", json={name: body[name] for name in ("model", "messages")})
    assert response.status_code == 200, response.text
    assert response.json()["stop_reason"] == "max_tokens"
    usage = response.json()["usage"]
    assert counted.json()["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"] > 16
    assert "messages[0].content[0]" in lying.json()["error"]["message"]
