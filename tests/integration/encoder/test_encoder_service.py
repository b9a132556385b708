"""A whole encoder: bad files and options over gRPC, batches against single items, its control port, its process."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import torch
from PIL import Image
from support.builders.media import a_picture, a_png_that_claims, a_sound_file, a_video_file, an_image_file, samples
from support.builders.multimodal import FAMILIES, build_checkpoint, modalities
from support.builders.tokenizer import write_model
from support.drivers.encoder import MODALITIES, an_encoder
from triptych.errors import UnsupportedModelError
from triptych.v1 import common_pb2, control_pb2, control_pb2_grpc, encoder_pb2, encoder_pb2_grpc
from triptych_common.media.limits import MediaLimits
from triptych_common.rpc.channels import open_channel
from triptych_encoder.media.preprocess import Preprocessor
from triptych_encoder.tower.loading import load_config, load_towers
from triptych_encoder.tower.tower import Tower

pytestmark = pytest.mark.model
LIMITS = MediaLimits(1 << 25, 1 << 26, 600, 600, 1 << 28)


def two_files(modality: str) -> list[bytes]:
    if modality == "image":
        return [an_image_file("PNG", a_picture(seed=seed)) for seed in (1, 2)]
    if modality == "audio":
        return [a_sound_file(data=samples(seed=seed)) for seed in (1, 2)]
    return [a_video_file(seed=seed) for seed in (1, 2)]


async def test_prometheus_can_scrape_it(tmp_path: Path) -> None:
    path = build_checkpoint("llava_clip", tmp_path / "model")
    async with an_encoder(path, metrics_port=0) as encoder, httpx.AsyncClient(trust_env=False) as client:
        file = an_image_file()
        item = encoder.item("image", file)
        await encoder.encode(item)
        await encoder.encode(item)
        tensors = await encoder.fetch(item.key)
        text = (await client.get(f"http://127.0.0.1:{encoder.service.metrics_port}/metrics")).text
    for line in (
        "triptych_encoder_ready 1.0",
        'triptych_encoder_items_total{tier="miss"} 1.0',
        'triptych_encoder_items_total{tier="local"} 1.0',
        "triptych_encoder_evictions_total 0.0",
        "triptych_encoder_queue_length 0.0",
        "triptych_encoder_leases 2.0",
        f"triptych_encoder_uploaded_bytes_total {float(2 * len(file))}",
        f"triptych_encoder_fetched_bytes_total {float(sum(tensor.nbytes for tensor in tensors.values()))}",
    ):
        assert line in text.splitlines()


@pytest.mark.parametrize("family", FAMILIES)
def test_batched_equals_alone(family: str, tmp_path: Path) -> None:
    path = build_checkpoint(family, tmp_path / family)
    config = load_config(path, family)
    towers = load_towers(path, family, config, dtype=None, device=torch.device("cpu"))
    tower, preprocessor = Tower(towers.model, towers.device, towers.dtype), Preprocessor(path, config, LIMITS)
    assert all(not parameter.is_meta for parameter in towers.model.parameters())
    names = [name for name, _ in towers.model.named_parameters()]
    assert not any("language_model" in name or "lm_head" in name or "text_model.layers" in name for name in names)
    for modality in preprocessor.load():
        kind = next(name for name, value in MODALITIES.items() if value == modality)
        assert kind in modalities(family)
        items = [preprocessor.prepare(modality, file, {}).item for file in two_files(kind)]
        assert tower.signature(items[0]) == tower.signature(items[1])
        for item, together in zip(items, tower.encode(items), strict=True):
            [alone] = tower.encode([item])
            assert list(alone) == list(together)
            for name, tensor in alone.items():
                torch.testing.assert_close(together[name], tensor, atol=1e-5, rtol=1e-5)


async def refused(encoder: Any, modality: str, data: bytes, options: dict[str, Any] | None = None) -> str:
    [result] = await encoder.encode(encoder.item(modality, data, options))
    assert result.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0], result
    assert result.error.field
    return result.error.message


async def test_bad_input_gets_a_reason_and_hurts_nobody(tmp_path: Path) -> None:
    path = build_checkpoint("qwen3_omni", tmp_path / "model")
    async with an_encoder(path, max_image_pixels=1_000_000, max_audio_s=5.0) as encoder:
        assert "60000x60000" in await refused(encoder, "image", a_png_that_claims(60_000, 60_000))
        assert "no known format" in await refused(encoder, "image", b"PK\x03\x04" + b"\0" * 100)
        assert "truncated" in await refused(encoder, "image", an_image_file("JPEG", a_picture(300, 300))[:3000])
        assert "aspect ratio" in await refused(encoder, "image", an_image_file("PNG", Image.new("RGB", (10_000, 3))))
        assert "at most 5 s" in await refused(encoder, "audio", a_sound_file(data=samples(6.0)))
        assert "takes no video" in await refused(encoder, "video", a_video_file())
        assert "no such option for image: nonsense" in await refused(encoder, "image", an_image_file(), {"nonsense": 1})
        huge = {"size": {"shortest_edge": 10**12, "longest_edge": 10**12}}
        assert "must be in" in await refused(encoder, "image", an_image_file(), huge)
        odd = {"size": {"shortest_edge": "many"}}
        assert "cannot be preprocessed" in await refused(encoder, "image", an_image_file(), odd)
        for image in (Image.new("RGB", (1, 1)), a_picture().convert("CMYK")):
            kind = "JPEG" if image.mode == "CMYK" else "PNG"
            [good] = await encoder.encode(encoder.item("image", an_image_file(kind, image)))
            assert not good.HasField("error")


async def test_options_of_a_request_are_honoured(tmp_path: Path) -> None:
    path = build_checkpoint("qwen2_5_vl", tmp_path / "model")
    file, video = an_image_file("PNG", a_picture(224, 224)), a_video_file(40)
    async with an_encoder(path) as encoder:
        small = {"size": {"shortest_edge": 56 * 56, "longest_edge": 56 * 56}}
        results = await encoder.encode(
            encoder.item("image", file),
            encoder.item("image", file, small),
            encoder.item("video", video),
            encoder.item("video", video, {"fps": 4.0}),
        )
        assert not any(result.HasField("error") for result in results), results
        assert [result.num_tokens for result in results[:2]] == [16, 4]
        frames = [(await encoder.fetch(result.key))["video_grid_thw"][0, 0].item() for result in results[2:]]
        assert frames == [4, 8]


async def test_sounds_beyond_the_window_are_refused_rather_than_cut(tmp_path: Path) -> None:
    path = build_checkpoint("qwen2_audio", tmp_path / "model")
    async with an_encoder(path) as encoder:
        assert "this model takes at most 2 s" in await refused(encoder, "audio", a_sound_file(data=samples(2.5)))


async def test_text_models_are_refused_at_start(tmp_path: Path) -> None:
    path = write_model(tmp_path / "text")
    with pytest.raises(UnsupportedModelError, match="no towers"):
        async with an_encoder(path):
            pass


async def test_the_control_port_drains_and_wakes(tmp_path: Path) -> None:
    path = build_checkpoint("llava_siglip", tmp_path / "model")
    async with an_encoder(path) as encoder, open_channel(f"127.0.0.1:{encoder.service.control_port}") as channel:
        control = control_pb2_grpc.ControlServiceStub(channel)
        info = await control.GetServerInfo(control_pb2.GetServerInfoRequest())
        assert (info.instance.service, info.instance.state) == ("encoder", common_pb2.SERVER_STATE_SERVING)
        model = (await control.GetModelInfo(control_pb2.GetModelInfoRequest())).model
        assert model == encoder.description.model
        [held] = await encoder.encode(encoder.item("image", an_image_file()))
        assert (await control.Drain(control_pb2.DrainRequest(timeout_s=5))).drained
        with pytest.raises(grpc.aio.AioRpcError, match="draining"):
            await encoder.encode(encoder.item("image", an_image_file("PNG", a_picture(seed=5))))
        assert await encoder.fetch(held.key), "what is held can still be fetched"
        await control.WakeUp(control_pb2.WakeUpRequest())
        await encoder.stub.Release(encoder_pb2.ReleaseRequest(lease_ids=[held.lease_id]))
        assert (await control.ResetCache(control_pb2.ResetCacheRequest())).num_entries == 1
        [again] = await encoder.encode(encoder.item("image", an_image_file()))
        assert again.tier == encoder_pb2.CACHE_TIER_MISS
        await encoder.stub.Release(encoder_pb2.ReleaseRequest(lease_ids=[again.lease_id]))
        assert (await control.Sleep(control_pb2.SleepRequest(timeout_s=5))).freed_bytes > 0


def test_the_process_ends_cleanly_where_there_is_nothing_to_encode(tmp_path: Path) -> None:
    path = write_model(tmp_path / "text")
    command = [sys.executable, "-m", "triptych_encoder", "--model", str(path), "--port", "0", "--control-port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "text takes text only: there is nothing to encode" in done.stderr


async def test_the_process_serves_yields_its_cores_and_stops(tmp_path: Path) -> None:
    path = build_checkpoint("llava_siglip", tmp_path / "model")
    command = [sys.executable, "-m", "triptych_encoder", "--model", str(path), "--port", "0", "--control-port", "0"]
    process = subprocess.Popen([*command, "--device", "cpu"], stderr=subprocess.PIPE, text=True)  # noqa: ASYNC220
    try:
        port, log = await asyncio.wait_for(asyncio.to_thread(_until_ready, process), 60)
        async with open_channel(f"127.0.0.1:{port}") as channel:
            stub = encoder_pb2_grpc.EncoderServiceStub(channel)
            description = await stub.Describe(encoder_pb2.DescribeRequest())
        assert len(description.embedding_fingerprint) == 32, log
        threads = {int(name): os.getpriority(os.PRIO_PROCESS, int(name)) for name in os.listdir(f"/proc/{process.pid}/task")}
        base = os.getpriority(os.PRIO_PROCESS, 0)
        assert threads[process.pid] == base, "the event loop keeps its priority"
        assert sorted(threads.values())[-3:] == [max(base, 10)] * 3, "device thread and two of the pool"
    finally:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == 0
        assert process.stderr is not None
        process.stderr.close()


def _until_ready(process: subprocess.Popen[str]) -> tuple[int, str]:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "ready:" in line:
            break
    log = "".join(lines)
    found = re.search(r"listening on 127\.0\.0\.1:(\d+)", log)
    assert found, log
    return int(found[1]), log
