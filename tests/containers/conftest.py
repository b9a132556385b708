"""The images, built once, and a volume with the default model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.podman import BASE_IMAGE, BUILD_ARGS, RUN_ARGS, Project, run, try_to
from triptych_cli.stack.ports import free_port

_STAND_INS = Path(__file__).parent / "stand_ins"
_PROJECT = "triptych-test"


@pytest.fixture(scope="session")
def images() -> None:
    """All images. What did not change since the last time is not built again."""
    if os.environ.get("TRIPTYCH_IMAGES") == "built":
        return
    # Health checks are no part of podman's own image format.
    build_args = ["--format", "docker", "--build-arg", f"BASE_IMAGE={BASE_IMAGE}", *BUILD_ARGS]
    run("make", "images", "CONTAINER=podman", f"BUILD_ARGS={' '.join(build_args)}")


@pytest.fixture(scope="session")
def stand_ins() -> dict[str, str]:
    """Images in place of those that docker-compose.yml takes from others, as the variables that name them."""
    names = {"VALKEY_IMAGE": "localhost/triptych-test-valkey:latest", "COLLECTOR_IMAGE": "localhost/triptych-test-collector:latest"}
    for name in names.values():
        target = name.removeprefix("localhost/triptych-test-").removesuffix(":latest")
        base = ["--build-arg", f"BASE_IMAGE={BASE_IMAGE}"]
        run("podman", "build", *base, *BUILD_ARGS, "--target", target, "--tag", name, str(_STAND_INS))
    return names


@pytest.fixture(scope="module")
def project(images: None, stand_ins: dict[str, str]) -> Iterator[Project]:
    """A project that was not started yet, on free ports, with the default model in its volume. All of it is removed at the end."""
    ports = {"TRIPTYCH_PORT": str(free_port("127.0.0.1")), "TRIPTYCH_GRPC_PORT": str(free_port("127.0.0.1"))}
    made = Project(_PROJECT, {**ports, **stand_ins})
    made.remove()  # what a run left behind that was killed
    run("podman", "volume", "create", "--label", f"com.docker.compose.project={_PROJECT}", made.volume)
    try:
        run("podman", "run", "--rm", *RUN_ARGS, "--volume", f"{made.volume}:/var/cache/triptych", "triptych-fetch:latest")
        yield made
    finally:
        made.remove()
        try_to("podman", "image", "prune", "--force", "--filter", "label=triptych-test")
