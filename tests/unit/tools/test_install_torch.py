"""Where torch comes from: the CPU build by uv, or wherever pip was told to look."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from install_torch import configured_sources, has_nvidia_gpu, install

_TOOL = Path(__file__).parents[3] / "tools" / "install_torch.py"


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


def test_the_cpu_build_is_asked_of_uv(tmp_path: Path) -> None:
    said = tmp_path / "said"
    tool = (sys.executable, "-c", f"import sys; open({str(said)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')")
    assert install(["-q", "torch>=2.11,<2.14"], "cpu", pip=tool, uv=tool) == 0
    assert said.read_text().splitlines() == [
        "install -q uv",
        f"pip install --python {sys.executable} --torch-backend cpu --no-deps -q torch>=2.11,<2.14",
    ]


def test_uv_takes_these_options() -> None:
    """The real one, which is offline here: it gets as far as looking for torch."""
    command = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-cache", "--dry-run", "--torch-backend", "cpu"]
    done = subprocess.run([*command, "--python", sys.executable, "--no-deps", "torch==0.0.1"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "torch" in done.stderr
    assert "unexpected argument" not in done.stderr


def test_without_a_cpu_build_the_default_is_taken_and_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wheel(tmp_path / "own" / "torch", "2.13.0")
    fails = (sys.executable, "-c", "raise SystemExit(2)")
    with index(tmp_path / "own") as address:
        monkeypatch.setenv("PIP_INDEX_URL", address)
        arguments = ["-q", "--no-deps", "--target", str(tmp_path / "out"), "torch>=2.11,<2.14"]
        assert install(arguments, "cpu", uv=fails) == 0
    assert (tmp_path / "out" / "torch-2.13.0.dist-info").is_dir()
    assert capfd.readouterr().err.splitlines() == ["the CPU build of torch is not to be had; taking what pip's default index has"]


def test_a_build_that_was_asked_for_is_not_replaced_by_another(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = tmp_path / "said"
    pip = (sys.executable, "-c", f"import sys; open({str(said)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')")
    uv = (sys.executable, "-c", "raise SystemExit('no such build')")
    assert install(["torch"], "cu128", pip=pip, uv=uv, is_required=True) != 0
    assert said.read_text().splitlines() == ["install -q uv"]
    assert capfd.readouterr().err.splitlines() == ["the cu128 build of torch is not to be had:", "no such build"]


def test_sources_of_pip_win_over_a_build_and_another_environment_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path / "wheels" / "torch", "2.13.0+cpu")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels" / "torch"))
    into = str(tmp_path / "env" / "bin" / "python")
    options = ["--backend", "cu128", "--into", into, "-q", "--no-deps", "torch>=2.11,<2.14"]
    done = subprocess.run([sys.executable, str(_TOOL), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pip was told where to look (find-links, no-index), so torch comes from there" in done.stderr
    assert list((tmp_path / "env" / "lib").glob("*/site-packages/torch-2.13.0+cpu.dist-info"))


def test_a_failure_of_the_plain_install_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert install(["-q", "--target", str(tmp_path / "out"), "torch>=2.11,<2.14"], None) != 0


def test_a_gpu_is_visible_by_its_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert has_nvidia_gpu()
