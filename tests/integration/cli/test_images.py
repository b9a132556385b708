"""Builds the images, starts them with the compose file, asks one question, takes everything down: `pytest -m podman`.

Needs podman and podman-compose. TRIPTYCH_BUILD_ARGS is added to each `podman build`, TRIPTYCH_FETCH_ARGS to the `podman run` that
fetches the model (for example `--network host` where containers have no other way out).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from triptych_cli.stack.ports import free_port
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [
    pytest.mark.podman,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not (shutil.which("podman") and shutil.which("podman-compose")), reason="needs podman and podman-compose"),
]
_ROOT = Path(__file__).resolve().parents[3]
_PROJECT = "triptych-test"
_READY_TIMEOUT_S = 300


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(command, cwd=_ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def images() -> None:
    # Health checks are no part of podman's own image format.
    run("make", "images", "CONTAINER=podman", f"BUILD_ARGS=--format docker {os.environ.get('TRIPTYCH_BUILD_ARGS', '')}")


@pytest.fixture
def url(images: None) -> Iterator[str]:
    """The gateway of a started project whose model is there."""
    port = free_port("127.0.0.1")
    compose = ("podman-compose", "--project-name", _PROJECT)
    volume = f"{_PROJECT}_models"
    run("podman", "volume", "create", "--label", f"com.docker.compose.project={_PROJECT}", volume)
    try:
        fetch_args = shlex.split(os.environ.get("TRIPTYCH_FETCH_ARGS", ""))
        run("podman", "run", "--rm", *fetch_args, "--volume", f"{volume}:/var/cache/triptych", "triptych-fetch:latest")
        run(*compose, "up", "--detach", "--no-build", TRIPTYCH_PORT=str(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        logs = subprocess.run([*compose, "logs"], cwd=_ROOT, capture_output=True, text=True, check=False)
        print(logs.stdout, logs.stderr)
        subprocess.run([*compose, "down", "--volumes"], cwd=_ROOT, capture_output=True, check=False)
        subprocess.run(["podman", "volume", "rm", "--force", volume], capture_output=True, check=False)


def wait_until_ready(url: str) -> None:
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    while True:
        try:
            if httpx.get(f"{url}/ready", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline_s, "not ready in time"
        time.sleep(0.5)  # another machine's readiness has no event to wait for


def test_the_compose_file_serves_an_answer(url: str) -> None:
    wait_until_ready(url)
    body = {"model": DEFAULT_MODEL, "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    assert "Paris" in response.raise_for_status().json()["choices"][0]["message"]["content"]
    for service in ("gateway", "frontend", "encoder", "engine"):
        run("podman", "healthcheck", "run", f"{_PROJECT}_{service}_1")


@pytest.mark.parametrize(
    ("service", "absent"),
    [
        ("gateway", ["torch", "transformers", "tokenizers"]),
        ("frontend", ["torch", "fastapi"]),
        ("encoder", ["fastapi", "gguf"]),
        ("engine", ["fastapi"]),
    ],
)
def test_an_image_holds_what_its_service_needs_and_runs_as_nobody(images: None, service: str, absent: list[str]) -> None:
    program = f"import importlib.util, os; print(os.getuid(), [name for name in {absent} if importlib.util.find_spec(name)])"
    assert run("podman", "run", "--rm", "--entrypoint", "python", f"triptych-{service}:latest", "-c", program) == "10001 []\n"
