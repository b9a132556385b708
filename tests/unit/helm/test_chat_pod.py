"""tests/chat.yaml: what `helm test` starts. tests/contract/gateway/test_gateway_helm_test.py runs its script."""

from __future__ import annotations

from typing import Any

from support.chart import FULL, of_kind

from tools.helm.render import CHART

SCRIPT = CHART / "files" / "tests" / "chat.py"


def test_the_pod(rendered: Any) -> None:
    objects = rendered(file="two-models")
    pod = of_kind(objects, "Pod")[f"{FULL}-test"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    url = f"http://{FULL}-gateway:8000"
    assert container["args"] == [url, "smollm2-135m-vision", url, "minilm"]
    assert "env" not in container
    assert of_kind(objects, "ConfigMap")[f"{FULL}-test"]["data"]["chat.py"] == SCRIPT.read_text(encoding="utf-8").rstrip()


def test_a_key_and_https(rendered: Any) -> None:
    objects = rendered(tests={"apiKeySecret": {"name": "keys"}}, gateway={"httpsSecret": "host", "service": {"port": 443}})
    (container,) = of_kind(objects, "Pod")[f"{FULL}-test"]["spec"]["containers"]
    assert container["args"][0] == f"https://{FULL}-gateway:443"
    assert container["env"] == [{"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "api-key"}}}]
