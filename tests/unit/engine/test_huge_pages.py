"""Memory on pages of 2 MiB."""

from __future__ import annotations

import gc
import mmap
import re
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from triptych_engine.runner import huge_pages
from triptych_engine.runner.huge_pages import HugePages

_MIB = 1 << 20
_SMAPS = Path("/proc/self/smaps")
_BEGIN = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")


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
