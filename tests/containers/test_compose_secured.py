"""docker-compose.yml with API keys from a file and mutual TLS, set up as docs/containers.md says."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.podman import ROOT, Project, needs_podman, run, until
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [*needs_podman, pytest.mark.skipif(os.geteuid() != 0, reason="gives files to the containers' user, as `sudo` would")]
_READY_TIMEOUT_S = 300
_SERVICES = ("gateway", "frontend", "encoder", "engine")


def triptych(*arguments: str) -> str:
    return run(sys.executable, "-m", "triptych_cli", *arguments)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture(scope="module")
def key(secrets: Path) -> str:
    (secrets / "keys").mkdir()
    return triptych("keys", "create", "--file", str(secrets / "keys/keys.json"), "--name", "Ada").strip()


@pytest.fixture(scope="module")
def stack(project: Project, secrets: Path, key: str) -> Iterator[Project]:
    triptych("certs", str(secrets / "certs"))
    run("chown", "-R", "10001:10001", str(secrets / "keys"), *(str(secrets / "certs" / service) for service in _SERVICES))
    # What pytest makes is for its user only.
    for folder in (secrets, secrets.parent):
        folder.chmod(0o711)
    paths = {"TRIPTYCH_API_KEYS": str(secrets / "keys"), "TRIPTYCH_CERTS": str(secrets / "certs")}
    files = ("compose/keys.yaml", "compose/certificates.yaml")
    started = Project(project.name, {**project.environment, **paths}, files=files)
    try:
        started.compose("up", "--detach", "--no-build", *_SERVICES)
        yield started
    finally:
        for container in [name for service in _SERVICES for name in started.containers(service)]:
            print(f"--- {container}\n{started.logs(container)[-3000:]}")


def ask(stack: Project, key: str | None) -> httpx.Response:
    picture = base64.b64encode((ROOT / "examples/circle.png").read_bytes()).decode()
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
        {"type": "text", "text": "What is in the picture?"},
    ]
    body = {"model": DEFAULT_MODEL, "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 16}
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    address = f"http://127.0.0.1:{stack.environment['TRIPTYCH_PORT']}"
    return httpx.post(f"{address}/v1/chat/completions", json=body, headers=headers, timeout=120, trust_env=False)


def answers(stack: Project, key: str) -> bool:
    try:
        return ask(stack, key).status_code == 200
    except httpx.TransportError:
        return False


def test_a_picture_is_answered_to_those_with_a_key(stack: Project, key: str) -> None:
    until("a picture is answered", lambda: answers(stack, key), _READY_TIMEOUT_S)
    assert "circle" in ask(stack, key).json()["choices"][0]["message"]["content"].lower()
    assert [ask(stack, other).status_code for other in (None, key[:-1] + "?")] == [401, 401]


def test_all_services_use_certificates_and_are_healthy(stack: Project) -> None:
    for container in [name for service in _SERVICES for name in stack.containers(service)]:
        until(f"{container} is healthy", lambda name=container: stack.is_healthy(name), _READY_TIMEOUT_S)
        assert "/etc/triptych/tls: the certificate is valid until" in stack.logs(container)


def test_a_key_that_is_made_while_all_runs_is_accepted_soon(stack: Project, secrets: Path) -> None:
    new = triptych("keys", "create", "--file", str(secrets / "keys/keys.json"), "--name", "Bob").strip()
    until("the new key is accepted", lambda: answers(stack, new), 30)
