"""Frontend and encoder on the same files: sizes, keys and numbers of embeddings agree, for each family and modality."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
import support.builders.media_files as media
from PIL import Image
from support.builders.multimodal import FAMILIES, build_checkpoint, modalities
from support.drivers.encoder import an_encoder
from support.drivers.encoder_client import ensure
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2
from triptych_common.model.store import model_info
from triptych_common.rpc.principal import ANONYMOUS, Principal
from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.pool import EncoderPool
from triptych_frontend.media.fetch import MediaFetcher
from triptych_frontend.media.item import MODALITY_NAMES
from triptych_frontend.media.preparer import MediaPreparer
from triptych_frontend.service import _load_text_and_media
from triptych_frontend.settings import FrontendSettings

pytestmark = pytest.mark.model
_MODALITIES = {name: modality for modality, name in MODALITY_NAMES.items()}
_DOT = media.image(1, 1)
_FILES: dict[str, list[bytes]] = {
    "image": [
        media.image(90, 50),
        media.image(40, 70, "JPEG", orientation=6),
        media.image(33, 31, "TIFF", orientation=8),
        media.image(120, 20, "WEBP"),
        media.image(50, 60, "JPEG", "CMYK"),
        media.animation(),
        _DOT,
    ],
    "audio": [
        media.sound(24_000),
        media.sound(11_111, 44_100, "MP3"),
        media.sound(9000, 8000, "FLAC"),
        media.sound(20_001, 22_050, "OGG", 2),
        media.lying_wav(12_000, 2**32 - 1),
    ],
    "video": [media.video(), media.video(9, 120, 80, 4), media.video(33, 50, 90, 25, "matroska")],
}


@pytest.mark.parametrize("family", FAMILIES)
async def test_what_is_expected_is_what_comes(family: str, tmp_path: Path) -> None:
    path = build_checkpoint(family, tmp_path / family)
    async with an_encoder(path) as encoder:
        pool = EncoderPool([f"127.0.0.1:{encoder.service.port}"], model_info(path, path.name))
        client = EncoderClient(pool, 30)
        settings = FrontendSettings(max_media_items=64)
        _, expander, why = _load_text_and_media(path)
        assert expander is not None, why
        preparer = MediaPreparer(expander, MediaFetcher(settings), settings, pool)
        watch = asyncio.create_task(pool.run())
        try:
            for name in modalities(family):
                modality = _MODALITIES[name]
                if modality not in expander.modalities:
                    assert (family, name) in (("qwen2_5_omni", "video"), ("qwen3_omni", "video"))
                    continue
                for content in _FILES[name]:
                    item = common_pb2.MediaItem(modality=modality, data=content)
                    prepared = await preparer.prepare([("item", item)], Principal("a tenant"), "", preparer.budget.hold())
                    encoding = await ensure(client, prepared)
                    result = encoding.result_of(prepared[0].key)
                    assert result.result.key == prepared[0].key
                    await encoding.close()
            assert client.counts["failed"] == client.counts["same_encoder"] == 0
        finally:
            await client.close()
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            preparer.close()


async def test_damage_behind_the_header_is_found_by_the_encoder(tmp_path: Path) -> None:
    path = build_checkpoint("llava_siglip", tmp_path / "llava")
    file = io.BytesIO()
    Image.effect_noise((300, 200), 60).convert("RGB").save(file, "JPEG")
    async with an_encoder(path) as encoder:
        pool = EncoderPool([f"127.0.0.1:{encoder.service.port}"], model_info(path, path.name))
        client = EncoderClient(pool, 30)
        settings = FrontendSettings()
        preparer = MediaPreparer(_load_text_and_media(path)[1], MediaFetcher(settings), settings, pool)
        watch = asyncio.create_task(pool.run())
        try:
            item = common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, data=file.getvalue()[:3000])
            prepared = await preparer.prepare([("messages[0].content[0].media", item)], ANONYMOUS, "", preparer.budget.hold())
            with pytest.raises(InvalidRequestError, match=r"messages\[0\].content\[0\].media: the image is truncated"):
                await ensure(client, prepared)
        finally:
            await client.close()
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            preparer.close()
