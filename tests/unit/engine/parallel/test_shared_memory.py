"""Sums and copies of ranks through memory that they share. Here, ranks are threads: calls of the library leave Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.cpu.rank_kernels import SharedMemory

kernels = load_kernels()
pytestmark = pytest.mark.skipif(kernels is None or not hasattr(os, "memfd_create"), reason="needs the CPU kernels on Linux")
#: Numbers of floats: none, few, a slot and its neighbours, several slots, shared by threads or not.
COUNTS = (0, 1, 37, 33_000, (1 << 17) - 1, 1 << 17, (1 << 17) + 1, 400_001)


@contextmanager
def ranks(size: int) -> Iterator[Callable[[Callable[[SharedMemory, int], Any]], list[Any]]]:
    """Calls a function of a rank's memory and number in all ranks at once; returns what they returned."""
    descriptor = os.memfd_create("ranks")
    assert kernels is not None
    memories = [kernels.ranks.open(descriptor, rank, size) for rank in range(size)]
    os.close(descriptor)
    with ThreadPoolExecutor(size) as threads:
        yield lambda function: list(threads.map(function, memories, range(size), timeout=60))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_sums_are_those_in_the_order_of_ranks_to_the_last_bit(size: int) -> None:
    with ranks(size) as run:
        for count in COUNTS:
            data = torch.randn(size, count) * 10.0 ** torch.randint(-6, 6, (size, count))
            total = data[0].clone()
            for one in data[1:]:
                total += one
            run(lambda memory, rank, data=data: memory.sum(data[rank]))
            assert all(torch.equal(one, total) for one in data)


@pytest.mark.parametrize("size", [2, 3])
def test_each_rank_gets_what_the_others_have(size: int) -> None:
    with ranks(size) as run:
        for counts in [(1, 0, 5), (70_000, 3, 9), (300_000, 300_001, 299_000)]:
            data = [torch.randn(count) for count in counts[:size]]

            def gather(memory: SharedMemory, rank: int, data: list[torch.Tensor] = data) -> list[torch.Tensor]:
                outs = [torch.empty_like(one) for one in data]
                memory.gather(data[rank], outs)
                return outs

            for outs in run(gather):
                assert all(torch.equal(out, one) for out, one in zip(outs, data, strict=True))


def test_a_slot_is_not_written_before_all_have_read_it() -> None:
    """Ranks of different speed, and rounds of all kinds in turn."""

    def rounds(memory: SharedMemory, rank: int) -> bool:
        generator = torch.Generator().manual_seed(rank)
        is_right = True
        for number in range(300):
            if torch.rand(1, generator=generator).item() < 0.2:
                torch.randn(20_000).sum()  # late
            data = torch.full((1 + number * 97,), float(number + rank))
            memory.sum(data)
            is_right &= bool((data == 3 * number + 3).all())
            outs = [torch.empty(number + one) for one in range(3)]
            memory.gather(torch.full((number + rank,), float(rank)), outs)
            is_right &= all(bool((out == one).all()) for one, out in enumerate(outs))
        return is_right

    with ranks(3) as run:
        assert all(run(rounds))
