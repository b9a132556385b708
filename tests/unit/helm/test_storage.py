"""storage.yaml, fetch.yaml: where a model's files are, and how they come there."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.chart import FULL, container_of, environment, of_kind, pod_of

ENGINE, FRONTEND = f"{FULL}-a-engine", f"{FULL}-a-frontend"
HUB = [{"name": "a", "model": "org/a"}]
BUILTIN = [{"name": "a", "model": "smollm2-135m-vision"}]


def models_volume(objects: Any, deployment: str = ENGINE) -> dict[str, Any]:
    (found,) = [volume for volume in pod_of(objects, deployment)["volumes"] if volume["name"] == "models"]
    return {key: value for key, value in found.items() if key != "name"}


def model_mount(objects: Any, deployment: str = ENGINE) -> dict[str, Any]:
    (found,) = [mount for mount in container_of(objects, deployment)["volumeMounts"] if mount["name"] == "models"]
    return dict(found)


def test_a_hub_model_is_fetched_by_each_service(rendered: Any) -> None:
    objects = rendered(models=HUB, hub={"tokenSecret": {"name": "hub"}, "endpoint": "https://hub.example.com"})
    assert models_volume(objects) == {"emptyDir": {}}
    assert "initContainers" not in pod_of(objects, ENGINE)
    assert model_mount(objects) == {"name": "models", "mountPath": "/models"}
    variables = environment(objects, ENGINE)
    assert variables["HF_HOME"] == "/models/huggingface"
    assert variables["HF_ENDPOINT"] == "https://hub.example.com"
    assert "HF_HUB_OFFLINE" not in variables
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    assert token in container_of(objects, ENGINE)["env"]


def test_a_builtin_model_is_fetched_before_each_service(rendered: Any) -> None:
    objects = rendered(models=BUILTIN, storage={"cache": {"sizeLimit": "5Gi"}})
    assert models_volume(objects) == {"emptyDir": {"sizeLimit": "5Gi"}}
    (fetch,) = pod_of(objects, ENGINE)["initContainers"]
    assert fetch["image"] == "triptych-fetch:0.1.0"
    assert fetch["args"][0] == "smollm2-135m-vision"
    # Where it is put is where it is looked for.
    assert {"name": "TRIPTYCH_CACHE", "value": "/models/triptych"} in fetch["env"]
    assert environment(objects, ENGINE)["TRIPTYCH_CACHE"] == "/models/triptych"
    assert environment(objects, ENGINE)["HF_HUB_OFFLINE"] == "1"
    assert not of_kind(objects, "Job")


def test_a_claim_is_filled_by_a_job(rendered: Any) -> None:
    objects = rendered(
        models=HUB, storage={"type": "pvc", "pvc": {"storageClassName": "fast"}}, hub={"tokenSecret": {"name": "hub"}}
    )
    claim = of_kind(objects, "PersistentVolumeClaim")[f"{FULL}-a-models"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "50Gi"}},
    }
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    ((name, job),) = of_kind(objects, "Job").items()
    assert name.startswith(f"{FULL}-a-fetch-")
    pod = job["spec"]["template"]["spec"]
    assert "helm.sh/hook" not in job["metadata"].get("annotations", {})
    assert {"name": "models", "persistentVolumeClaim": {"claimName": f"{FULL}-a-models"}} in pod["volumes"]
    (fetch,) = pod["containers"]
    assert {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}} in fetch["env"]
    # Services read, and wait until the Job has finished.
    for deployment in (ENGINE, FRONTEND):
        assert models_volume(objects, deployment) == {"persistentVolumeClaim": {"claimName": f"{FULL}-a-models"}}
        assert model_mount(objects, deployment)["readOnly"] is True
        (wait,) = pod_of(objects, deployment)["initContainers"]
        assert wait["command"][-1] == fetch["args"][1]
        assert environment(objects, deployment)["HF_HUB_OFFLINE"] == "1"
        assert not [entry for entry in container_of(objects, deployment)["env"] if entry["name"] == "HF_TOKEN"]


def test_a_job_that_does_something_else_has_another_name(rendered: Any) -> None:
    def name(**values: Any) -> str:
        (found,) = of_kind(rendered(**{"models": HUB, "storage": {"type": "pvc"}, **values}), "Job")
        return str(found)

    assert name() == name(engine={"replicas": 2})
    different = {
        name(),
        name(image={"tag": "2"}),
        name(models=[{"name": "a", "model": "org/b"}]),
        name(fetch={"env": [{"name": "A"}]}),
    }
    assert len(different) == 4


def test_the_name_of_a_job_is_cut_and_stays_unique(rendered: Any) -> None:
    names = [f"a-model-whose-name-is-rather-long-{number:05}" for number in range(2)]
    models = [{"name": name, "model": "org/a"} for name in names]
    storage = {"type": "pvc", "pvc": {"existingClaim": "mine"}}
    found = list(of_kind(rendered(models=models, storage=storage, nameOverride="llm"), "Job"))
    assert [len(name) for name in found] == [len(name.rstrip("-")) for name in found]
    assert all(len(name) <= 63 for name in found)
    assert len(found) == 2
    assert all(name.startswith("demo-llm-a-model-whose-name-is-rather-long-0000") for name in found)


def test_a_claim_that_exists(rendered: Any) -> None:
    objects = rendered(models=HUB, storage={"type": "pvc", "pvc": {"existingClaim": "mine"}})
    assert not of_kind(objects, "PersistentVolumeClaim")
    assert of_kind(objects, "Job")
    assert models_volume(objects) == {"persistentVolumeClaim": {"claimName": "mine"}}


def test_a_directory_on_a_claim(rendered: Any) -> None:
    objects = rendered(models=[{"name": "a"}], storage={"type": "pvc", "pvc": {"existingClaim": "mine", "path": "llama/8b"}})
    assert not of_kind(objects, "Job")
    assert "initContainers" not in pod_of(objects, ENGINE)
    assert environment(objects, ENGINE)["TRIPTYCH_ENGINE_MODEL"] == "/models/llama/8b"
    assert environment(objects, ENGINE)["TRIPTYCH_ENGINE_SERVED_MODEL_NAME"] == "a"


@pytest.mark.parametrize(("path", "model"), [("", "/models"), ("weights", "/models/weights")])
def test_an_image_volume(rendered: Any, path: str, model: str) -> None:
    image = {"reference": "registry.example.com/models/a:1", "path": path}
    objects = rendered(models=[{"name": "a", "storage": {"type": "image", "image": image}}])
    assert models_volume(objects) == {"image": {"reference": "registry.example.com/models/a:1", "pullPolicy": "IfNotPresent"}}
    assert model_mount(objects)["readOnly"] is True
    assert environment(objects, ENGINE)["TRIPTYCH_ENGINE_MODEL"] == model
    assert not of_kind(objects, "Job")


def test_the_shell_commands_do_what_they_should(rendered: Any, tmp_path: Path) -> None:
    """The Job's command marks that it has finished, and the waiting command sees that."""
    objects = rendered(models=HUB, storage={"type": "pvc"})
    (job,) = of_kind(objects, "Job").values()
    (fetch,) = job["spec"]["template"]["spec"]["containers"]
    (wait,) = pod_of(objects, ENGINE)["initContainers"]
    program = tmp_path / "triptych"
    program.write_text(f'#!/bin/sh\n[ "$1 $2" = "fetch org/a" ] && [ ! -e {tmp_path}/fail ]\n')
    program.chmod(0o755)
    marker = f"{tmp_path}/{fetch['args'][1]}"
    command = [*fetch["command"], fetch["args"][0], marker]
    waiting = [*wait["command"][:-1], marker]
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    (tmp_path / "fail").touch()
    assert subprocess.run(command, env=environ, check=False).returncode != 0
    assert not Path(marker).exists()
    (tmp_path / "fail").unlink()
    subprocess.run(command, env=environ, check=True)
    assert Path(marker).exists()
    subprocess.run(waiting, env=environ, check=True, timeout=30)
