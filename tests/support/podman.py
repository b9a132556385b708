"""Runs podman and podman-compose, and one project of docker-compose.yml."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ("gateway", "frontend", "encoder", "engine", "fetch")
#: Added to each `podman build` and to each `podman run` that needs the network.
BUILD_ARGS = shlex.split(os.environ.get("TRIPTYCH_BUILD_ARGS", ""))
RUN_ARGS = shlex.split(os.environ.get("TRIPTYCH_RUN_ARGS", ""))
BASE_IMAGE = os.environ.get("BASE_IMAGE", "docker.io/library/python:3.11-slim")

needs_podman = [
    pytest.mark.podman,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not (shutil.which("podman") and shutil.which("podman-compose")), reason="needs podman and podman-compose"),
]


def run(*command: str, **environment: str) -> str:
    """The standard output of a program that must succeed."""
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def try_to(*command: str) -> None:
    """Run a program that may fail, to clean up."""
    subprocess.run(command, cwd=ROOT, capture_output=True, check=False)


def image_bytes(name: str) -> int:
    return int(run("podman", "image", "inspect", "--format", "{{.Size}}", name))


def until(what: str, look: Callable[[], T | None], timeout_s: float) -> T:
    """The first true value of `look`. Fails with `what` when the time is over."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        if found := look():
            return found
        assert time.monotonic() < deadline_s, f"not in {timeout_s:.0f} s: {what}"
        time.sleep(0.5)  # a container has no event to wait for


@dataclass(frozen=True)
class Project:
    """One project of docker-compose.yml. All that it makes has its name.

    Attributes:
        files: further Compose files.
    """

    name: str
    environment: Mapping[str, str]
    profiles: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def compose(self, *arguments: str) -> str:
        files = [part for file in ("docker-compose.yml", *self.files) for part in ("--file", file)]
        profiles = [part for profile in self.profiles for part in ("--profile", profile)]
        return run("podman-compose", "--project-name", self.name, *files, *profiles, *arguments, **self.environment)

    @property
    def volume(self) -> str:
        return f"{self.name}_models"

    def containers(self, service: str) -> list[str]:
        """The running containers of a service."""
        label = f"label=io.podman.compose.project={self.name}"
        listed = json.loads(run("podman", "ps", "--filter", label, "--format", "json"))
        return sorted(each["Names"][0] for each in listed if each["Labels"]["com.docker.compose.service"] == service)

    def logs(self, container: str) -> str:
        done = subprocess.run(["podman", "logs", container], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def metrics(self, container: str, port: int) -> dict[str, float]:
        """The metrics of a service, by name with labels."""
        program = f"from urllib.request import urlopen; print(urlopen('http://127.0.0.1:{port}/metrics').read().decode())"
        text = run("podman", "exec", container, "python", "-c", program)
        lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def is_healthy(self, container: str) -> bool:
        """Whether the image's own health check passes."""
        return subprocess.run(["podman", "healthcheck", "run", container], capture_output=True, check=False).returncode == 0

    def crash(self, container: str) -> int:
        """Kill the process as the kernel would, which unlike `podman kill` is no order to stop. Returns its process id."""
        pid = int(run("podman", "inspect", "--format", "{{.State.Pid}}", container))
        os.kill(pid, signal.SIGKILL)
        return pid

    def remove(self) -> None:
        """Remove containers, network and volumes."""
        label = f"label=io.podman.compose.project={self.name}"
        for container in run("podman", "ps", "--all", "--quiet", "--filter", label).split():
            try_to("podman", "rm", "--force", "--depend", "--time", "5", container)
        for volume in run("podman", "volume", "ls", "--quiet", "--filter", f"name={self.name}_").split():
            try_to("podman", "volume", "rm", "--force", volume)
        try_to("podman", "network", "rm", "--force", f"{self.name}_default")
