"""What `make release` makes, in empty environments without the checkout. If $TRIPTYCH_DIST is set, it was made before."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stack import Serving

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(1800)]
_ROOT = Path(__file__).parents[2]
_ASK = """
from openai import OpenAI
import sys
client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="none")
question = [{"role": "user", "content": "What is the capital of France?"}]
print(client.chat.completions.create(model="smollm2-135m-instruct", messages=question, temperature=0).choices[0].message.content)
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if made := os.environ.get("TRIPTYCH_DIST"):
        return Path(made).resolve()
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "tools.release", "--out", out], cwd=_ROOT, check=True)
    return out


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, from which the checkout is not seen."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("TRIPTYCH_KERNEL_DIR", raising=False)
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _environment(folder: Path, dist: Path, *requirements: str) -> tuple[Path, float]:
    """A new environment's directory of programs; and how long `pip install` took, in seconds."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    started = time.perf_counter()
    options = ["-q", "--disable-pip-version-check", "--find-links", dist]
    subprocess.run([folder / "bin/python", "-m", "pip", "install", *options, *requirements], check=True)
    return folder / "bin", time.perf_counter() - started


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


@pytest.fixture
def serving(elsewhere: Path, dist: Path) -> Iterator[tuple[Serving, Path, float]]:
    """`triptych serve` of the installed package, the programs beside it, and when it was started."""
    programs, seconds = _environment(elsewhere / "venv", dist, "triptych-server[all]", "openai")
    print(f"pip install: {seconds:.0f} s, {_size(elsewhere / 'venv') / 1e9:.2f} GB")
    started = time.perf_counter()
    command = [programs / "triptych", "serve", "smollm2-135m-instruct"]
    command += [f"--{name}port=0" for name in ("", "grpc-", "frontend-", "encoder-", "engine-")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        yield Serving(process), programs, started
        process.terminate()


def test_the_installed_server_answers_and_compiles_nothing(serving: tuple[Serving, Path, float], elsewhere: Path) -> None:
    server, programs, started = serving
    url = server.wait_until_started()
    answer = subprocess.run([programs / "python", "-c", _ASK, url], capture_output=True, text=True, check=True).stdout
    print(f"triptych serve: first answer after {time.perf_counter() - started:.1f} s, with the download of the model")
    assert "Paris" in answer
    assert str(_ROOT) not in server.log
    assert "falling back" not in server.log
    assert not (elsewhere / "cache" / "kernels").exists()
    assert list(programs.parent.glob("lib/*/site-packages/triptych_engine/runner/cpu/prebuilt/*.so"))


def test_the_client_alone_needs_no_server(elsewhere: Path, dist: Path) -> None:
    programs, seconds = _environment(elsewhere / "venv", dist, "triptych")
    print(f"pip install: {seconds:.0f} s, {_size(elsewhere / 'venv') / 1e6:.0f} MB")
    program = "import triptych, importlib.util; print(triptych.Client.__name__, importlib.util.find_spec('triptych_common'))"
    shown = subprocess.run([programs / "python", "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown == "Client None\n"


@pytest.mark.skipif(shutil.which("npm") is None, reason="this machine has no npm")
def test_the_npm_package_is_complete(elsewhere: Path, dist: Path) -> None:
    (package,) = dist.glob("triptych-ai-triptych-*.tgz")
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", package], check=True, capture_output=True)
    program = "import('@triptych-ai/triptych').then(m => console.log(typeof m.TriptychClient, Object.keys(m).length > 3))"
    shown = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True).stdout
    assert shown == "function true\n"


def test_the_chart_renders_with_images_of_its_version(dist: Path) -> None:
    (chart,) = (path for path in dist.glob("triptych-*.tgz") if not path.name.startswith("triptych-ai"))
    helm = Path(sys.executable).with_name("helm")
    shown = subprocess.run([helm, "template", "t", chart], capture_output=True, text=True, check=True).stdout
    version = chart.stem.removeprefix("triptych-")
    assert f"image: triptych-engine:{version}" in shown.replace('"', "")


def test_the_sums_are_those_of_the_files(dist: Path) -> None:
    lines = (dist / "SHA256SUMS").read_text().splitlines()
    sums = dict(reversed(line.split("  ")) for line in lines)
    assert set(sums) == {path.name for path in dist.iterdir()} - {"SHA256SUMS"}
    assert all(hashlib.sha256((dist / name).read_bytes()).hexdigest() == expected for name, expected in sums.items())
