"""Blocks that the host's memory has no room for are kept on disk, and are what they were or are not found."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest
from support.builders.engine import a_host_tier
from triptych_engine.kv_offload.disk_tier import DiskTier
from triptych_engine.kv_offload.host_tier import HostTier

_SIZE = 1 << 10
NAMES = [hashlib.sha256(bytes([number])).digest() for number in range(40)]


def content(number: int) -> bytes:
    return bytes((number * 7 + offset) % 256 for offset in range(_SIZE))


def put(tier: HostTier, *numbers: int) -> None:
    for number in numbers:
        slot = tier.reserve(NAMES[number])
        assert slot is not None
        tier.bytes_of(slot)[0][:] = content(number)
        assert tier.complete(slot)


def holds(tier: HostTier, number: int) -> bool:
    (slot,) = tier.pin([NAMES[number]]) or (None,)
    if slot is None:
        return False
    is_right = bytes(tier.bytes_of(slot)[0]) == content(number)
    tier.unpin([slot])
    assert is_right
    return True


def a_disk(path: Path, tier: HostTier, max_blocks: int = 100, layout: str = "0a" * 32) -> DiskTier:
    return DiskTier(path, max_blocks * (_SIZE + 16), layout, tier)


def test_what_has_no_room_comes_back_from_disk(tmp_path: Path):
    tier = a_host_tier(4, _SIZE)
    disk = a_disk(tmp_path, tier)
    put(tier, *range(12))
    disk._queue.join()
    assert disk.num_blocks == 8
    assert not holds(tier, 0)
    disk.load(NAMES[:3])
    assert all(holds(tier, number) for number in range(3))
    assert disk.num_loaded == 3
    disk.close()
    tier.check_integrity()


def test_blocks_are_still_there_after_a_restart(tmp_path: Path):
    tier = a_host_tier(4, _SIZE)
    disk = a_disk(tmp_path, tier)
    put(tier, *range(8))
    disk.close()
    (tmp_path / ("0a" * 16) / ".half").write_bytes(b"x")
    tier = a_host_tier(4, _SIZE)
    again = a_disk(tmp_path, tier)
    assert again.num_blocks == 4
    again.load(NAMES[:4])
    assert all(holds(tier, number) for number in range(4))
    assert not (tmp_path / ("0a" * 16) / ".half").exists()
    assert a_disk(tmp_path, a_host_tier(4, _SIZE), layout="0b" * 32).num_blocks == 0, "of another layout"


@pytest.mark.parametrize("how", ["a bit", "cut", "swapped", "removed", "empty"])
def test_a_file_that_is_not_as_it_was_is_not_believed(tmp_path: Path, how: str):
    tier = a_host_tier(4, _SIZE)
    disk = a_disk(tmp_path, tier)
    put(tier, *range(8))
    disk.close()
    paths = [tmp_path / ("0a" * 16) / name.hex() for name in NAMES]
    data = bytearray(paths[1].read_bytes())
    match how:
        case "a bit":
            data[500] ^= 4
            paths[1].write_bytes(data)
        case "cut":
            paths[1].write_bytes(data[:-1])
        case "swapped":  # whole, but of another block
            paths[1].write_bytes(paths[3].read_bytes())
        case "removed":
            paths[1].unlink()
        case "empty":
            paths[1].write_bytes(b"")
    disk.load(NAMES[:3])
    assert holds(tier, 0)
    assert not holds(tier, 1)
    assert not holds(tier, 2), "what follows is of no use"
    assert disk.num_corrupt == 1
    assert not disk.holds(NAMES[1])
    assert not paths[1].exists()
    tier.check_integrity()


def test_blocks_that_come_back_make_no_room_for_those_behind_them(tmp_path: Path):
    tier = a_host_tier(8, _SIZE)
    disk = a_disk(tmp_path, tier)
    put(tier, *range(7, -1, -1))  # as the KV cache evicts them: the first one last
    put(tier, *range(20, 26))
    disk._queue.join()
    disk.load(NAMES[:8])
    assert tier.num_found(NAMES[:8]) == 8
    assert not tier._pins
    put(tier, 30)
    assert tier.num_found(NAMES[:8]) == 7, "the end of a chain goes first"


def test_blocks_are_found_while_they_are_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tier, may_write = a_host_tier(4, _SIZE), threading.Event()
    disk = a_disk(tmp_path, tier)
    write = disk._write

    def slow(block_hash: bytes, data: bytes) -> None:
        may_write.wait()
        write(block_hash, data)

    monkeypatch.setattr(disk, "_write", slow)
    put(tier, *range(8))
    assert not disk.num_blocks
    disk.load(NAMES[:3])
    assert all(holds(tier, number) for number in range(3))
    may_write.set()
    disk.close()
    assert not disk._unwritten


def test_files_take_no_more_than_their_share(tmp_path: Path):
    tier = a_host_tier(4, _SIZE)
    disk = a_disk(tmp_path, tier, max_blocks=5)
    put(tier, *range(30))
    disk.close()
    assert disk.num_blocks == 5
    assert len(list((tmp_path / ("0a" * 16)).iterdir())) == 5
    assert a_disk(tmp_path, a_host_tier(4, _SIZE), max_blocks=3).num_blocks == 3


def test_a_disk_that_is_full_loses_blocks_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tier = a_host_tier(4, _SIZE)
    disk = a_disk(tmp_path, tier)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("triptych_engine.kv_offload.disk_tier.os.replace", full)
    put(tier, *range(8))
    disk.close()
    assert (disk.num_blocks, disk.num_dropped) == (0, 4)
    assert not list((tmp_path / ("0a" * 16)).iterdir())
    assert holds(tier, 7)


def test_files_come_and_go_while_others_are_read(tmp_path: Path):
    """Writing removes the oldest while reading moves them: neither stops the other."""
    tier = a_host_tier(8, _SIZE)
    disk = a_disk(tmp_path, tier, max_blocks=6)
    for _ in range(30):
        for number in range(40):
            disk.store(NAMES[number], b"?" * 16, [memoryview(content(number))])
            disk.store(NAMES[39 - number], b"?" * 16, [memoryview(content(number))])
    disk._queue.join()
    assert disk._writer.is_alive()
    disk.close()
    assert disk.num_blocks <= 6
    assert len(list((tmp_path / ("0a" * 16)).iterdir())) == disk.num_blocks


def test_what_was_cleared_while_it_was_written_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tier, is_writing, may_end = a_host_tier(4, _SIZE), threading.Event(), threading.Event()
    disk = a_disk(tmp_path, tier)
    replace = os.replace

    def slow(source: str, target: Path) -> None:
        is_writing.set()
        may_end.wait()
        replace(source, target)

    monkeypatch.setattr("triptych_engine.kv_offload.disk_tier.os.replace", slow)
    put(tier, *range(5))
    is_writing.wait()
    disk.clear()
    may_end.set()
    disk._queue.join()
    assert not disk.holds(NAMES[0])
    assert not list((tmp_path / ("0a" * 16)).iterdir())
    disk.close()


def test_engines_with_the_same_directory_have_parts_of_their_own(tmp_path: Path):
    tiers = [a_host_tier(4, _SIZE) for _ in range(2)]
    first, second = (a_disk(tmp_path, tier) for tier in tiers)
    put(tiers[0], *range(6))
    put(tiers[1], *range(1, 7))
    first.close()
    second.close()
    assert len([one for one in tmp_path.iterdir() if one.is_dir()]) == 2
    # The next one to start has what one of them has left.
    again = a_disk(tmp_path, a_host_tier(4, _SIZE))
    assert again.num_blocks == first.num_blocks == second.num_blocks == 2
    again.close()
