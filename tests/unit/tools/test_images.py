"""The programs that container images are built with."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from images.requirements import requirements
from images.slim import strippable, unused

_ROOT = Path(__file__).parents[3]


@pytest.fixture
def in_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(_ROOT)


@pytest.mark.usefixtures("in_repository")
def test_requirements_of_several_services_are_those_of_each() -> None:
    assert set(requirements("gateway", "encoder")) == {*requirements("gateway"), *requirements("encoder")}
    assert not [name for name in requirements("gateway") if name.startswith("triptych")]


def files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_what_no_service_reads_is_unused(tmp_path: Path) -> None:
    used = ("torch/bin/torch_shm_manager", "torch/testing/__init__.py", "transformers/models/x/processing_x.py", "other/tests/a.py")
    waste = (
        "torch/test/a.py",
        "torch/bin/protoc",
        "torch/bin/test_jit",
        "transformers/models/x/modular_x.py",
        "numpy/lib/tests/a.py",
    )
    files(tmp_path, *used, *waste, "transformers/models/x/modeling_x.py")
    going = {path.relative_to(tmp_path).as_posix() for path in unused(tmp_path)}
    assert going == {"torch/test", *waste[1:4], "numpy/lib/tests"}


def test_modeling_code_is_unused_without_torch(tmp_path: Path) -> None:
    files(tmp_path, "transformers/models/x/modeling_x.py", "transformers/models/auto/modeling_auto.py")
    assert [path.name for path in unused(tmp_path)] == ["modeling_x.py"]


def test_bundled_libraries_and_torch_keep_their_symbols(tmp_path: Path) -> None:
    files(tmp_path, "a/b.so", "a.libs/c.so", "torch/lib/d.so")
    assert [path.name for path in strippable(tmp_path)] == ["b.so"]


def test_bytecode_is_written_of_what_is_imported(tmp_path: Path) -> None:
    files(tmp_path, "a.py", "c.py")
    (tmp_path / "a.py").write_text("import b\n")
    (tmp_path / "b.py").write_text("")
    tool = _ROOT / "tools" / "images" / "compile_imported.py"
    command = [sys.executable, "-B", str(tool), "a"]
    subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, check=True)
    written = {name for name in "abc" if Path(cache_from_source(str(tmp_path / f"{name}.py"))).exists()}
    assert written == {"a", "b"}
