"""Memory on pages of 2 MiB."""

from __future__ import annotations

import ctypes
import gc
import mmap
import re
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from triptych_engine.runner.cpu import huge_pages
from triptych_engine.runner.cpu.huge_pages import HugePages, Prefault

_MIB = 1 << 20
_SMAPS = Path("/proc/self/smaps")
_BEGIN = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")


def resident_bytes(address: int, num_bytes: int = 64 * _MIB) -> int:
    """Of this memory alone: a mapping may be one with that of another tensor."""
    page, pages = mmap.PAGESIZE, (ctypes.c_ubyte * (num_bytes // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), pages) == 0
    return page * sum(flags & 1 for flags in pages)


def mapping_flags(address: int) -> set[str] | None:
    """The system's flags of the memory that the address lies in, or None where there is none."""
    inside = False
    for line in _SMAPS.read_text().splitlines():
        if begin := _BEGIN.match(line):
            inside = int(begin[1], 16) <= address < int(begin[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    return None


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 300), st.sampled_from([torch.int8, torch.bfloat16, torch.float32]))))
def test_tensors_are_as_asked_and_apart(wanted: list[tuple[int, int, torch.dtype]]):
    pages = HugePages()
    tensors = [pages.empty(rows, columns, dtype=dtype) for rows, columns, dtype in wanted]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number % 100)
    for number, (tensor, (rows, columns, dtype)) in enumerate(zip(tensors, wanted, strict=True)):
        assert tensor.shape == (rows, columns)
        assert tensor.dtype == dtype
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 64 == 0
        assert (tensor == number % 100).all()


linux = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir() or sys.platform != "linux", reason="a system without huge pages"
)


@linux
@pytest.mark.parametrize("num_bytes", [100, 40 * _MIB])
def test_the_system_is_asked_for_them(num_bytes: int):
    tensor = HugePages().empty(num_bytes, dtype=torch.uint8)
    flags = mapping_flags(tensor.data_ptr())
    assert flags is not None
    assert "hg" in flags
    assert tensor.data_ptr() % (2 * _MIB) == 0
    assert (tensor.fill_(7) == 7).all()


@linux
def test_a_region_is_given_back_with_its_last_tensor(monkeypatch: pytest.MonkeyPatch):
    regions: list[weakref.ref[mmap.mmap]] = []
    make = mmap.mmap

    def recorded(*args: Any, **options: Any) -> mmap.mmap:
        region = make(*args, **options)
        regions.append(weakref.ref(region))
        return region

    monkeypatch.setattr(mmap, "mmap", recorded)
    pages = HugePages()
    first, second = (pages.empty(5 * _MIB, dtype=torch.uint8) for _ in range(2))
    (region,) = regions
    assert second.data_ptr() == first.data_ptr() + 5 * _MIB
    del pages, first
    gc.collect()
    assert region() is not None
    del second
    gc.collect()
    assert region() is None


@linux
@pytest.mark.parametrize("num_bytes", [1 << 62, 1 << 70])
def test_what_the_system_does_not_have_is_a_memory_error(num_bytes: int):
    with pytest.raises(MemoryError, match=f"does not give {num_bytes} bytes"):
        HugePages().empty(num_bytes, dtype=torch.uint8)


def test_a_system_that_knows_no_such_pages_gives_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huge_pages, "_HAS_ADVICE", False)
    assert HugePages().empty(3, 4, dtype=torch.bfloat16).fill_(2).sum() == 24


def an_untouched_tensor(num_bytes: int = 64 * _MIB) -> torch.Tensor:
    tensor = HugePages().empty(num_bytes, dtype=torch.uint8)
    tensor[num_bytes // 2] = 7
    return tensor


@linux
def test_memory_is_taken_beforehand_and_keeps_what_it_holds():
    tensor = an_untouched_tensor()
    parts = tensor[: 31 * _MIB + 5], tensor[31 * _MIB + 5 :]
    assert resident_bytes(tensor.data_ptr()) < 8 * _MIB
    Prefault(parts).wait()
    assert resident_bytes(tensor.data_ptr()) >= 64 * _MIB
    assert tensor.sum() == 7


@linux
def test_taking_memory_ends_when_it_is_told_to(monkeypatch: pytest.MonkeyPatch):
    tensor, asked = an_untouched_tensor(), threading.Event()
    told = threading.Event()

    def pages(self: Prefault) -> Iterator[tuple[int, int]]:
        yield tensor.data_ptr(), 2 * _MIB
        asked.set()
        assert told.wait(10)
        yield tensor.data_ptr() + 8 * _MIB, 32 * _MIB

    monkeypatch.setattr(Prefault, "_pages", pages)
    prefault = Prefault([tensor])
    assert asked.wait(10)
    prefault._stopping.set()
    told.set()
    prefault.stop()
    assert resident_bytes(tensor.data_ptr()) < 16 * _MIB


@linux
def test_a_system_that_cannot_do_it_goes_on_without(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huge_pages, "_MADV_POPULATE_WRITE", 9999)
    tensor = an_untouched_tensor()
    Prefault([tensor]).wait()
    assert resident_bytes(tensor.data_ptr()) < 8 * _MIB


def test_tensors_are_gone_through_by_turns():
    """The first blocks of each layer come first, as requests do."""
    tensors = [torch.zeros(size * _MIB, dtype=torch.uint8) for size in (5, 1)]
    prefault = Prefault(tensors)
    prefault.wait()
    pages = list(prefault._pages())
    first, second = (next(i for i, (begin, size) in enumerate(pages) if begin <= x.data_ptr() < begin + size) for x in tensors)
    assert (first, second) == (0, 1)
    last_byte = tensors[0].data_ptr() + tensors[0].nbytes - 1
    assert any(begin <= last_byte < begin + size for begin, size in pages)
