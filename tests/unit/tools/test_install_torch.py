"""Where torch comes from: PyTorch's index of CPU builds, or wherever pip was told to look."""

from __future__ import annotations

import contextlib
import os
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from install_torch import configured_sources, has_nvidia_gpu, install


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip as on a machine where nobody told it anything."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def wheel(directory: Path, version: str) -> None:
    directory.mkdir(parents=True)
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(directory / f"torch-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr("torch/__init__.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\nRequires-Dist: nowhere\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@contextlib.contextmanager
def index(directory: Path) -> Iterator[str]:
    """Serves a directory as a package index; yields its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(directory))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_pip_knows_of_no_sources_where_nobody_named_any() -> None:
    assert configured_sources() == set()


def test_sources_in_variables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
    monkeypatch.setenv("PIP_TIMEOUT", "10")
    assert configured_sources() == {"find-links"}


def test_sources_in_a_configuration_file_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nextra-index-url = http://127.0.0.1:1/\n[install]\nretries = 1\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert configured_sources() == {"extra-index-url"}


def test_the_cpu_build_is_taken_alone(tmp_path: Path) -> None:
    """Without what it depends on, which comes from pip's own sources afterwards."""
    wheel(tmp_path / "index" / "torch", "2.12.0+cpu")
    with index(tmp_path / "index") as address:
        assert install(["-q", "--target", str(tmp_path / "out"), "torch>=2.11,<2.14"], address) == 0
    assert (tmp_path / "out" / "torch-2.12.0+cpu.dist-info").is_dir()


def test_an_index_that_does_not_answer_is_told_of_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wheel(tmp_path / "own" / "torch", "2.13.0")
    with index(tmp_path / "own") as address:
        monkeypatch.setenv("PIP_INDEX_URL", address)
        arguments = ["-q", "--no-deps", "--target", str(tmp_path / "out"), "torch>=2.11,<2.14"]
        assert install(arguments, "http://127.0.0.1:1") == 0
    assert (tmp_path / "out" / "torch-2.13.0.dist-info").is_dir()
    assert capfd.readouterr().err.splitlines() == [
        "no CPU build of torch from http://127.0.0.1:1; taking what pip's default index has"
    ]


def test_a_failure_of_the_plain_install_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert install(["-q", "--target", str(tmp_path / "out"), "torch>=2.11,<2.14"], None) != 0


def test_a_gpu_is_visible_by_its_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert has_nvidia_gpu()
