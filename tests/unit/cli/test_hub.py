"""`triptych fetch` of a hub id, in a process of its own, against a hub on loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fakes.hub import COMMIT, FakeHub, running_hub

FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"12345678" * 4096, "README.md": b"hello"}
PROGRAM = "from triptych_cli.main import app; app()"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running_hub(FakeHub(dict(FILES))) as hub:
        yield hub


def fetch(url: str, cache: Path, *, program: str = PROGRAM, **environment: str) -> tuple[int, str, str]:
    """Exit code, output and messages of `triptych fetch org/model`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    whole = {**kept, "HF_ENDPOINT": url, "HF_HOME": str(cache), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "*", **environment}
    done = subprocess.run(
        [sys.executable, "-c", program, "fetch", "org/model"], env=whole, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def test_a_model_is_fetched_and_then_needs_no_hub(hub: FakeHub, tmp_path: Path) -> None:
    code, path, messages = fetch(hub.url, tmp_path)
    assert code == 0, messages
    assert Path(path).name == COMMIT
    assert {file.name: file.read_bytes() for file in Path(path).iterdir()} == {
        name: content for name, content in FILES.items() if name != "README.md"
    }
    assert fetch(hub.url, tmp_path, HF_HUB_OFFLINE="1")[:2] == (0, path)


GATED = (
    "GatedRepo",
    "Access to model org/model is restricted. You must have access to it and be authenticated to access it. Please log in.",
)
TO_LOG_IN = "accept its licence at {url}/org/model, then run `hf auth login`, or set HF_TOKEN"


@pytest.mark.parametrize(
    ("refusal", "files_only", "token", "message"),
    [
        ((401, *GATED), False, "", "org/model is gated: " + TO_LOG_IN),
        ((401, *GATED), True, "", "org/model is gated: " + TO_LOG_IN),
        ((403, *GATED), True, "hf_token", "org/model is gated: accept its licence at {url}/org/model, then the token in use must"),
        (
            (404, "RepoNotFound", "Repository not found"),
            False,
            "hf_token",
            "the hub has no model org/model, or it",
        ),
        (
            (401, "", "Invalid username or password."),
            False,
            "",
            "the hub has no model org/model, or it is",
        ),
        ((401, "", "Invalid credentials in Authorization header"), False, "hf_bad", "does not let this token read org/model (401)"),
        ((403, "", "Forbidden"), False, "hf_token", "the hub does not let this token read org/model (403)"),
    ],
)
def test_a_refusal_says_what_to_do(
    refusal: tuple[int, str, str], files_only: bool, token: str, message: str, hub: FakeHub, tmp_path: Path
) -> None:
    hub.refusal, hub.file_refusal = (None, refusal) if files_only else (refusal, None)
    code, output, messages = fetch(hub.url, tmp_path, **({"HF_TOKEN": token} if token else {}))
    assert (code, output) == (1, "")
    assert message.format(url=hub.url) in messages
    assert messages.splitlines()[-1].startswith("triptych: ")
    assert "Traceback" not in messages
    assert "hf_" not in messages
    assert hub.tokens[-1] == (f"Bearer {token}" if token else None)


def test_a_hub_that_cannot_be_reached_is_told(hub: FakeHub, tmp_path: Path) -> None:
    address = hub.url
    code, _, messages = fetch(address, tmp_path, HF_HUB_OFFLINE="1")
    assert (code, "offline mode is on (HF_HUB_OFFLINE)" in messages) == (1, True)
    hub.url = "http://127.0.0.1:9"
    code, _, messages = fetch(hub.url, tmp_path)
    assert code == 1
    assert "org/model is not in the hub's cache, or not complete, and http://127.0.0.1:9 cannot be reached" in messages
    assert "Traceback" not in messages


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"model.Q4_K_M.gguf": b"GGUF"}, "org/model has no config.json at the hub"),
        ({"README.md": b""}, "org/model has no config.json at the hub"),
    ],
)
def test_a_repository_without_a_model_is_told(files: dict[str, bytes], message: str, hub: FakeHub, tmp_path: Path) -> None:
    hub.files = files
    code, _, messages = fetch(hub.url, tmp_path)
    assert code == 1
    assert message in messages
    assert "Traceback" not in messages


@pytest.mark.skipif(shutil.which("unshare") is None, reason="a full disk needs a file system of its own")
def test_a_full_disk_is_told(hub: FakeHub, tmp_path: Path) -> None:
    hub.files["model.safetensors"] = bytes(4 << 20)
    mount = f'mount -t tmpfs -o size=1m none {tmp_path} && exec "$@"'
    probe = subprocess.run(["unshare", "-rm", "sh", "-c", mount, "sh", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this machine lets nobody mount")
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "NO_PROXY": "*", "HF_HUB_OFFLINE": "0"}
    command = ["unshare", "-rm", "sh", "-c", mount, "sh", sys.executable, "-c", PROGRAM, "fetch", "org/model"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"cannot write org/model to {tmp_path}/hub: No space left on device; HF_HUB_CACHE names another directory" in done.stderr
    assert "Traceback" not in done.stderr
