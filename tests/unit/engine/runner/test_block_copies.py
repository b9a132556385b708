"""Blocks that are copied to the host and back are what they were, whatever the cache looks like."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
from support.builders.engine import a_request, a_tiny_llama_config, save_random_model
from support.drivers.engine import EngineDriver
from triptych_engine.kv_offload.host_memory import HostMemory, Slots
from triptych_engine.kv_offload.host_tier import HostTier
from triptych_engine.runner.attention.paged import LayerShape
from triptych_engine.runner.attention.plain import TorchAttention
from triptych_engine.runner.block_copies import HostBlocks, bytes_of_block, layout_of
from triptych_engine.runner.cpu.attention import CpuAttention
from triptych_engine.runner.cpu.kernels import CpuKernels
from triptych_engine.runner.cuda.attention import CudaAttention
from triptych_engine.runner.place import ALONE, Place

SHAPES = {0: LayerShape(2, 16, 16), 3: LayerShape(1, 24, 32)}
#: The last one keeps values in its keys.
WITH_LATENTS = SHAPES | {4: LayerShape(1, 40, 32, values_in_keys=True)}
CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("name", ["cpu", "torch", "cuda"])
@pytest.mark.parametrize("place", [ALONE, Place(1, 2)])
def test_blocks_come_back_as_they_were(name: str, dtype: torch.dtype, place: Place, kernels: CpuKernels):
    if name == "cuda" and dtype == torch.int8:
        pytest.skip("attention on GPUs keeps none in int8")
    makers = {"cpu": lambda: CpuAttention(kernels), "torch": lambda: TorchAttention(CPU), "cuda": lambda: CudaAttention(CPU)}
    backend = makers[name]()
    backend.allocate(SHAPES if name == "cuda" else WITH_LATENTS, 8, 16, dtype)
    parts = backend.blocks()
    assert [part.shape[0] for part in parts] == [8] * (4 if name == "cuda" else 5)
    for part in parts:
        part.copy_(torch.randint(-100, 100, part.shape))
    size = bytes_of_block(parts)
    memory = HostMemory.create(1 << 20)
    before = [part.clone() for part in parts]
    copies = HostBlocks(memory, place, parts)
    copies.store([(2, 5), (7, 0), (3, 1)])
    for part in parts:
        part.zero_()
    copies.load([(2, 5), (4, 0)])
    for part, old in zip(parts, before, strict=True):
        assert torch.equal(part[2], old[2])
        assert torch.equal(part[4], old[7])
        assert not part[3].any()
    # What the engine's process sees in a slot is the block, layer by layer.
    rank = memory.map_part(place.rank, place.size)
    expected = b"".join(old[3].contiguous().view(torch.uint8).numpy().tobytes() for old in before)
    assert rank[size : 2 * size] == expected


def test_memory_is_touched_in_the_background_and_given_back(kernels: CpuKernels):
    backend = CpuAttention(kernels)
    backend.allocate(SHAPES, 2, 16, torch.float32)
    memory = HostMemory.create(4 << 20)
    blocks = HostBlocks(memory, ALONE, backend.blocks())
    assert os.fstat(memory.descriptor).st_blocks == 0
    blocks.prefault()
    assert blocks._prefault is not None
    blocks._prefault.wait()
    blocks.stop_prefault()
    if not os.fstat(memory.descriptor).st_blocks:
        pytest.skip("this system does not touch memory in advance")
    size = bytes_of_block(backend.blocks())
    assert 512 * os.fstat(memory.descriptor).st_blocks > memory.num_bytes - size
    Slots(memory, [size]).give_back()
    assert os.fstat(memory.descriptor).st_blocks == 0


def test_one_process_maps_memory_once():
    memory = HostMemory.create(1 << 20)
    assert memory.map_part(0, 1) is memory.map_part(0, 1)
    other = pickle.loads(pickle.dumps(memory))  # noqa: S301 - as it comes to a worker
    other.map_part(0, 1)[:3] = b"abc"
    assert memory.map_part(0, 1)[:3] == b"abc"


def test_layouts_differ_where_bytes_mean_something_else(kernels: CpuKernels):
    layouts = set()
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        backend = CpuAttention(kernels)
        backend.allocate(SHAPES, 8, 16, dtype)
        layouts.add(layout_of(backend.name, backend.blocks()))
    assert len(layouts) == 3


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("attention", ["auto", "torch"])
def test_texts_are_the_same_where_prefixes_are_loaded(tmp_path: Path, attention: str, async_scheduling: bool):
    path = save_random_model(tmp_path, a_tiny_llama_config())
    memory = HostMemory.create(8 << 20)
    driver = EngineDriver(path, num_blocks=16, host_memory=memory, attention=attention)
    size = 2 * 16 * 2 * 16 * 2 * 4
    prompts = [[(5 * n + start) % 90 + 3 for n in range(100)] for start in (0, 1, 2)]

    def texts(tier: HostTier | None) -> list[list[int]]:
        scheduler = driver.scheduler(tier=tier)
        generated = []
        for turn in range(2):
            for number, prompt in enumerate(prompts):
                name = f"{turn} {number}"
                run = driver.run(scheduler, [a_request(name, prompt, max_tokens=20)], async_scheduling=async_scheduling)
                generated.append(run[name].token_ids)
        return generated

    tier = HostTier(memory, [size])
    expected = texts(None)
    assert texts(tier) == expected
    assert tier.statistics.num_loaded >= 12
    assert not tier.statistics.num_corrupt
