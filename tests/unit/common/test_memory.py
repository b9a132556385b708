"""How much memory there is, with and without a container's limit."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from triptych_common.host.memory import private_memory, usable_memory

GIB = 1 << 30


def write(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(content)


def test_without_a_limit_it_is_the_machines(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    write(tmp_path / "fs", memory__max="max\n", memory__current="5\n", memory__stat="inactive_file 1\n")
    assert usable_memory(tmp_path / "cgroup", tmp_path / "fs").total == psutil.virtual_memory().total
    assert usable_memory(tmp_path / "missing", tmp_path / "fs").total == psutil.virtual_memory().total


def test_the_tightest_group_counts_and_cached_files_are_free(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/pod/container\n")
    write(
        tmp_path / "fs/pod",
        memory__max=f"{GIB}",
        memory__current=f"{GIB // 2}",
        memory__stat=f"anon 7\ninactive_file {GIB // 8}\nactive_file {GIB // 8}",
    )
    write(tmp_path / "fs/pod/container", memory__max="max", memory__current="0", memory__stat="inactive_file 0")
    memory = usable_memory(tmp_path / "cgroup", tmp_path / "fs")
    assert (memory.total, memory.available) == (GIB, GIB - GIB // 4)


def test_groups_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("11:cpu,cpuacct:/x\n7:memory:/docker/1\n")
    names = {"memory__limit_in_bytes": f"{GIB}", "memory__usage_in_bytes": f"{GIB * 2}", "memory__stat": "total_inactive_file 0"}
    write(tmp_path / "fs/memory/docker/1", **names)
    memory = usable_memory(tmp_path / "cgroup", tmp_path / "fs")
    assert (memory.total, memory.available) == (GIB, 0)


@pytest.mark.parametrize("content", ["", "nonsense"])
def test_unreadable_numbers_are_no_limit(content: str, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    write(tmp_path / "fs", memory__max=content, memory__current="0", memory__stat="")
    assert usable_memory(tmp_path / "cgroup", tmp_path / "fs").total == psutil.virtual_memory().total


def test_the_process_holds_some() -> None:
    assert 1 << 20 < private_memory() < psutil.virtual_memory().total
