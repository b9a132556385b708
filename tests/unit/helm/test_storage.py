"""storage.yaml, fetch.yaml: where a model's files are, and how they come there."""

from __future__ import annotations

import subprocess
import time
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
    objects = rendered(
        models=HUB, storage={"type": "cache"}, hub={"tokenSecret": {"name": "hub"}, "endpoint": "https://hub.example.com"}
    )
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
    objects = rendered(models=BUILTIN, storage={"type": "cache", "cache": {"sizeLimit": "5Gi"}})
    assert models_volume(objects) == {"emptyDir": {"sizeLimit": "5Gi"}}
    (fetch,) = pod_of(objects, ENGINE)["initContainers"]
    assert fetch["image"] == "triptych-fetch:0.1.0"
    assert fetch["args"][0] == "smollm2-135m-vision"
    # Where it is put is where it is looked for.
    assert {"name": "TRIPTYCH_CACHE", "value": "/models/triptych"} in fetch["env"]
    assert environment(objects, ENGINE)["TRIPTYCH_CACHE"] == "/models/triptych"
    assert environment(objects, ENGINE)["HF_HUB_OFFLINE"] == "1"
    assert not of_kind(objects, "Job")
    # The files count, so that a limit would evict a pod with a large model.
    assert "ephemeral-storage" not in container_of(objects, ENGINE)["resources"]["limits"]


def test_each_models_weights_are_downloaded_once(rendered: Any) -> None:
    objects = rendered(engine={"replicas": 3})
    assert len(of_kind(objects, "Job")) == len(of_kind(objects, "PersistentVolumeClaim")) == 1
    fetching = [
        container for name in of_kind(objects, "Deployment") for container in pod_of(objects, name).get("initContainers", [])
    ]
    assert {container["name"] for container in fetching} == {"wait-for-model"}


def test_pods_of_a_claim_that_one_node_mounts_are_on_one_node(rendered: Any) -> None:
    objects = rendered(models=HUB)
    (job,) = of_kind(objects, "Job").values()
    pods = [job["spec"]["template"], *(one["spec"]["template"] for one in of_kind(objects, "Deployment").values())]
    of_model = [pod for pod in pods if "triptych.internal/model" in pod["metadata"]["labels"]]
    assert len(of_model) == 4
    for pod in of_model:
        (term,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        # It selects the pod itself: else the first one would wait for another.
        assert term["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_models_of_one_claim_are_on_one_node(rendered: Any) -> None:
    models = [{"name": name, "model": f"org/{name}"} for name in ("a", "b")]
    objects = rendered(models=models, storage={"pvc": {"existingClaim": "mine"}})
    affinities = [pod_of(objects, name).get("affinity") for name in of_kind(objects, "Deployment")]
    of_models = [affinity["podAffinity"] for affinity in affinities if affinity is not None]
    assert len(of_models) >= 4
    for affinity in of_models:
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["labelSelector"]["matchLabels"] == {"triptych.internal/claim": "mine"}


def test_a_claim_is_filled_by_a_job(rendered: Any) -> None:
    objects = rendered(
        models=HUB, storage={"type": "pvc", "pvc": {"storageClassName": "fast"}}, hub={"tokenSecret": {"name": "hub"}}
    )
    claim = of_kind(objects, "PersistentVolumeClaim")[f"{FULL}-a-models"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
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
        assert wait["command"][-2:] == [fetch["args"][1], str({ENGINE: 1800, FRONTEND: 600}[deployment])]
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
        name(image={"pullSecrets": [{"name": "a"}]}),
        name(serviceAccount={"create": False}),
        name(storage={"type": "pvc", "pvc": {"accessModes": ["ReadWriteMany"]}}),
    }
    assert len(different) == 7


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


@pytest.fixture
def commands(rendered: Any, tmp_path: Path) -> tuple[list[str], list[str], Path]:
    """The Job's command, the waiting one with a deadline of a second, and the file between them. `triptych` is the test's."""
    objects = rendered(models=HUB)
    (job,) = of_kind(objects, "Job").values()
    (fetch,) = job["spec"]["template"]["spec"]["containers"]
    (wait,) = pod_of(objects, ENGINE)["initContainers"]
    marker = tmp_path / fetch["args"][1].lstrip("/")
    environ = ["env", f"PATH={tmp_path}:/usr/bin:/bin"]
    return [*environ, *fetch["command"], fetch["args"][0], str(marker)], [*environ, *wait["command"][:-2], str(marker), "1"], marker


def program(folder: Path, text: str) -> None:
    path = folder / "triptych"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_the_job_says_that_it_has_finished_and_the_pods_see_it(commands: Any, tmp_path: Path) -> None:
    fetch, wait, marker = commands
    program(tmp_path, "exit 1")
    assert subprocess.run(fetch, check=False).returncode == 1
    assert not marker.exists()
    # Nobody waits for ever for what failed.
    waited = subprocess.run(wait, check=False, timeout=30, capture_output=True, text=True)
    assert waited.returncode == 1
    assert f"{marker} is missing after 1 s: look at the log of the Job" in waited.stderr
    program(tmp_path, '[ "$1 $2" = "fetch org/a" ]')
    subprocess.run(fetch, check=True)
    assert marker.exists()
    subprocess.run(wait, check=True, timeout=30)


@pytest.mark.parametrize("which", [0, 1], ids=["fetch", "wait"])
def test_a_pod_that_is_deleted_ends_at_once(commands: Any, tmp_path: Path, which: int) -> None:
    """A first process without a handler would not see SIGTERM, and its pod would last for 30 s."""
    program(tmp_path, f"touch {tmp_path}/started; while :; do sleep 0.05; done")
    command = [*commands[which][:-1], "600"] if which else commands[which]
    with subprocess.Popen(command) as process:
        while which == 0 and not (tmp_path / "started").exists():
            time.sleep(0.01)
        time.sleep(0.1 if which else 0)
        process.terminate()
        # 143 is the handler's; a process that the signal killed has a negative code.
        assert process.wait(20) == 143
    assert not commands[2].exists()
