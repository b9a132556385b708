"""What is in the images: size, user, packages, labels."""

from __future__ import annotations

import json

import pytest
from support.podman import BASE_IMAGE, IMAGES, ROOT, image_bytes, needs_podman, run

pytestmark = needs_podman
#: Most megabytes (10^6 bytes) above the base image.
_MOST_MB = {"gateway": 260, "frontend": 350, "encoder": 1200, "engine": 1200}
_VERSION = next(line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version")).split('"')[1]


@pytest.mark.parametrize("service", _MOST_MB)
def test_an_image_is_small(images: None, service: str) -> None:
    size_mb = (image_bytes(f"triptych-{service}:latest") - image_bytes(BASE_IMAGE)) / 1e6
    print(f"\ntriptych-{service}: {size_mb:.0f} MB above its base image")
    assert size_mb < _MOST_MB[service]


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


@pytest.mark.parametrize("service", ["frontend", "encoder", "engine"])
def test_its_packages_fit_together(images: None, service: str) -> None:
    """Nothing that an installed package requires is missing or has another version."""
    check = ["--entrypoint", "pip", f"triptych-{service}:latest", "--python", "/opt/triptych/bin/python", "check"]
    assert "No broken requirements found" in run("podman", "run", "--rm", *check)


@pytest.mark.parametrize("name", [*(f"triptych-{service}" for service in IMAGES), "triptych"])
def test_an_image_says_what_it_is(images: None, name: str) -> None:
    inspected = json.loads(run("podman", "image", "inspect", f"{name}:latest"))[0]
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in inspected["Labels"].items()}
    assert labels["version"] == _VERSION
    assert labels["revision"] == run("git", "rev-parse", "HEAD").strip()
    assert labels["licenses"] == "Apache-2.0"
    assert labels["base.name"] == BASE_IMAGE
    assert labels["title"].startswith("Triptych")
    assert inspected["User"] == "10001:10001"


def test_the_frontend_knows_the_configurations_of_all_models(images: None) -> None:
    """Its image has no modeling code. This imports no configuration of any model unless the rest is whole."""
    program = (
        "import importlib, pathlib, transformers\n"
        "folder = pathlib.Path(transformers.__file__).parent / 'models'\n"
        "names = [f'transformers.models.{path.parent.name}.{path.stem}' for path in sorted(folder.glob('*/configuration_*.py'))]\n"
        "print(len([importlib.import_module(name) for name in names]))"
    )
    number = run("podman", "run", "--rm", "--network", "none", "--entrypoint", "python", "triptych-frontend:latest", "-c", program)
    assert int(number) > 300
