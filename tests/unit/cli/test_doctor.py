"""`triptych doctor`: what it says about machines that lack something."""

from __future__ import annotations

import io
import socket
from collections import namedtuple
from pathlib import Path

import pytest
from rich.console import Console
from triptych_cli import doctor
from triptych_cli.doctor import Finding
from triptych_common.host.memory import Memory

_Usage = namedtuple("_Usage", "free")


def test_this_machine_can_run_the_tests() -> None:
    out = io.StringIO()
    assert doctor.doctor(Console(file=out, width=200))
    for subject in ("versions", "processor", "memory", "GPU", "disk", "ports"):
        assert subject in out.getvalue()


def test_a_bad_finding_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (lambda: iter([Finding("bad", "x", "broken[gateway]")]),))
    out = io.StringIO()
    assert not doctor.doctor(Console(file=out))
    assert out.getvalue().split() == ["✗", "x", "broken[gateway]"]


@pytest.mark.parametrize(
    ("isas", "level", "what"),
    [
        (["x86-64-v4-amx"], "good", "2 cores, x86-64-v4-amx"),
        (["x86-64-v4"], "note", "no bfloat16 instructions"),
        (["x86-64-v3"], "note", "AVX2 without AVX-512"),
        ([], "note", "no kernels are made for it"),
    ],
)
def test_processors(isas: list[str], level: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "isas_of_this_cpu", lambda: isas)
    monkeypatch.setattr(doctor, "num_usable_cores", lambda: 2)
    finding = next(doctor.processor())
    assert (finding.level, finding.subject) == (level, "processor")
    assert what in finding.what


def test_an_instruction_set_that_the_processor_lacks_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CPU_ISA", "x86-64-v9")
    (finding,) = doctor.processor()
    assert (finding.level, "TRIPTYCH_CPU_ISA is 'x86-64-v9'" in finding.what) == ("bad", True)


def test_a_cache_that_is_a_file_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "file" / "cache"))
    (finding,) = doctor.disk()
    assert (finding.level, f"{tmp_path / 'file'} is no directory" in finding.what) == ("bad", True)


def test_kernels_need_a_compiler_unless_they_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path))
    monkeypatch.setenv("TRIPTYCH_KERNEL_DIR", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: None)
    (_, finding) = doctor.processor()
    assert (finding.level, "no C++ compiler" in finding.what) == ("note", True)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    (_, finding) = doctor.processor()
    assert (finding.level, "at the first start" in finding.what) == ("good", True)


def test_little_memory_little_disk_and_few_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "usable_memory", lambda: Memory(8 << 30, 1 << 30))
    monkeypatch.setattr("shutil.disk_usage", lambda path: _Usage(1 << 30))
    monkeypatch.setattr("resource.getrlimit", lambda which: (256, 1024))
    pages = tmp_path / "enabled"
    pages.write_text("always madvise [never]")
    monkeypatch.setattr(doctor, "_HUGE_PAGES", pages)
    findings = [*doctor.memory(), *doctor.disk(), *doctor.connections()]
    assert [(one.level, one.subject) for one in findings] == [
        ("note", "memory"),
        ("note", "huge pages"),
        ("note", "disk"),
        ("note", "open files"),
    ]


def test_a_gpu_that_torch_cannot_use_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "num_nvidia_gpus", lambda: 2)
    monkeypatch.setattr(doctor, "version", lambda package: "2.13.0+cpu")
    (finding,) = doctor.gpus()
    assert (finding.level, finding.what[:13]) == ("bad", "2 NVIDIA GPUs")


def test_a_taken_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor, "_PORTS", {"gateway": port})
        (finding,) = doctor.ports()
    assert finding.level == "note"
    assert finding.what.startswith(f"{port} (gateway): another program has them")


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor._PACKAGES, "encoder", "no-such-package")
    note = next(one for one in doctor.packages() if one.level == "note")
    assert note.subject == "encoder"
    assert "because no-such-package is not installed; run: pip install" in note.what
