"""The image with all services: `podman run triptych` alone serves a model, on a read-only root file system."""

from __future__ import annotations

import httpx
from support.podman import Project, needs_podman, run, try_to, until
from triptych_cli.stack.ports import free_port
from triptych_common.settings import DEFAULT_MODEL

pytestmark = needs_podman
_NAME = "triptych-test-suite"


def test_one_container_serves_a_model_and_stops_cleanly(project: Project) -> None:
    port = free_port("127.0.0.1")
    volume = f"{project.volume}:/var/cache/triptych"
    options = [
        "--detach",
        "--name",
        _NAME,
        "--publish",
        f"127.0.0.1:{port}:8000",
        "--volume",
        volume,
        "--read-only",
        "--tmpfs",
        "/tmp",
    ]
    try_to("podman", "rm", "--force", _NAME)
    try:
        run("podman", "run", *options, "triptych:latest", DEFAULT_MODEL)

        def is_ready() -> bool:
            try:
                return httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False).status_code == 200
            except httpx.TransportError:
                return False

        until("the container is ready", is_ready, 300)
        body = {
            "model": DEFAULT_MODEL,
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "temperature": 0,
        }
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=120, trust_env=False)
        assert "Paris" in answer.raise_for_status().json()["choices"][0]["message"]["content"]
        run("podman", "healthcheck", "run", _NAME)
        run("podman", "stop", "--time", "60", _NAME)
        assert run("podman", "inspect", "--format", "{{.State.ExitCode}}", _NAME).strip() == "0"
    finally:
        print(run("podman", "logs", _NAME)[-3000:])
        try_to("podman", "rm", "--force", _NAME)
