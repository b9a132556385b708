"""A pod for an inference gateway: its services as processes of this machine, with the chart's environment and certificates."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from support.chart import Object, containers_of, environment, of_kind, pod_of
from triptych_cli.stack.ports import free_port

from tools.helm.render import render

pytestmark = [pytest.mark.model, pytest.mark.timeout(300), pytest.mark.long]
_MODEL = "smollm2-135m-vision"
_POD = f"demo-triptych-{_MODEL}-engine"
_TEXT = "Count from one to fifty."
_QUESTION: dict[str, Any] = {
    "model": _MODEL,
    "messages": [{"role": "user", "content": _TEXT}],
    "temperature": 0,
    "max_tokens": 120,
    "ignore_eos": True,
}
#: What an endpoint picker reads.
_LOAD = {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"}


class _Pod:
    """The pod's services.

    Args:
        directory: for the Secrets that the pod mounts, and the services' logs.
    """

    def __init__(self, objects: list[Object], directory: Path) -> None:
        self._objects, self._directory = objects, directory
        self._containers = containers_of(objects, _POD)
        ports = {port["containerPort"] for container in self._containers.values() for port in container["ports"]}
        #: The pod's port -> one of this machine.
        self._ports = {port: free_port("127.0.0.1") for port in sorted(ports)}
        self.url = f"http://127.0.0.1:{self._ports[8000]}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for role in self._containers:
            with (self._directory / f"{role}.log").open("wb") as log:
                command = [sys.executable, "-m", f"triptych_{role}"]
                process = subprocess.Popen(command, env=os.environ | self._environment(role), stdout=log, stderr=subprocess.STDOUT)
            self._processes[role] = process

    def _environment(self, role: str) -> dict[str, str]:
        """As the chart has it, except for ports, paths and sizes of this machine."""
        found = environment(self._objects, _POD, self._containers[role])
        found = {name: value for name, value in found.items() if name.startswith("TRIPTYCH_") and name != "TRIPTYCH_CACHE"}
        own, prefix = self._secret(role), f"TRIPTYCH_{role.upper()}_"
        for name, value in found.items():
            for port, replaced in self._ports.items():
                if value == str(port) or value.endswith(f":{port}"):
                    found[name] = value.removesuffix(str(port)) + str(replaced)
        main = {"gateway": 8000, "frontend": 50054, "encoder": 50052, "engine": 50053}[role]
        found |= {f"{prefix}TLS_DIR": str(own), f"{prefix}PORT": str(self._ports[main])}
        if role == "gateway":
            return found | {f"{prefix}GRPC_PORT": str(self._ports[50051])}
        if role == "engine":
            found[f"{prefix}KV_CACHE_MEMORY"] = "256M"
        return found | {f"{prefix}CONTROL_PORT": str(free_port("127.0.0.1"))}

    def _secret(self, role: str) -> Path:
        """The directory where the container finds its certificate."""
        volumes = {volume["name"]: volume.get("secret", {}) for volume in pod_of(self._objects, _POD)["volumes"]}
        (mount,) = [one for one in self._containers[role]["volumeMounts"] if one["mountPath"] == "/etc/triptych/tls"]
        data = of_kind(self._objects, "Secret")[volumes[mount["name"]]["secretName"]]["data"]
        directory = self._directory / role
        directory.mkdir(exist_ok=True)
        for name, content in data.items():
            (directory / name).write_bytes(base64.b64decode(content))
        return directory

    def end(self) -> dict[str, int]:
        """As the kubelet ends a pod: the gateway, then its sidecars, the last that started first. Returns the exit codes."""
        codes = {}
        for role in reversed(self._containers):
            self._processes[role].send_signal(signal.SIGTERM)
            codes[role] = self._processes[role].wait(150)
        return codes

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    @property
    def logs(self) -> str:
        return "\n".join(path.read_text(encoding="utf-8") for path in sorted(self._directory.glob("*.log")))


@contextlib.contextmanager
def _pod(directory: Path) -> Iterator[_Pod]:
    # On a busy machine, answers take long. Beside others they are the same as alone.
    values = {
        "inferenceGateway": {"enabled": True},
        "settings": {"log_format": "text", "shutdown_grace_s": 120},
        "engine": {"settings": {"batch_invariant": True}},
    }
    pod = _Pod(render(values), directory)
    try:
        pod.start()
        yield pod
    except BaseException:
        print(pod.logs)
        raise
    finally:
        pod.kill()


def _about_picture(seed: int) -> list[dict[str, Any]]:
    """A question about a picture that no cache has."""
    pixels = np.random.default_rng(seed).integers(0, 255, (256, 256, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
    return [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]


async def _until_ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get("/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.2)


async def test_a_pod_answers_and_tells_its_load_and_ends_what_it_began(tmp_path: Path) -> None:
    with _pod(tmp_path) as pod:
        async with httpx.AsyncClient(base_url=pod.url, timeout=180) as client:
            await _until_ready(client)
            undisturbed = (await client.post("/v1/chat/completions", json=_QUESTION)).json()
            families = {family.name: family for family in text_string_to_metric_families((await client.get("/metrics")).text)}
            assert families.keys() >= _LOAD
            (running,) = families["vllm:num_requests_running"].samples
            assert running.labels["model_name"] == _MODEL

            async def ask(content: object) -> str:
                body = _QUESTION | {"messages": [{"role": "user", "content": content}]}
                response = await client.post("/v1/chat/completions", json=body)
                assert response.status_code == 200, response.text
                return str(response.json()["choices"][0]["message"]["content"])

            answers = [asyncio.create_task(ask(_TEXT)) for _ in range(4)]
            await asyncio.sleep(0.5)
            # Pictures that still have to be encoded when the pod ends.
            pictures = [asyncio.create_task(ask(_about_picture(index))) for index in range(4)]
            await asyncio.sleep(0.1)
            assert not any(answer.done() for answer in answers)
            ended = asyncio.create_task(asyncio.to_thread(pod.end))
            texts = {*await asyncio.gather(*answers)}
            assert all(await asyncio.gather(*pictures))
        assert await ended == dict.fromkeys(("gateway", "frontend", "engine", "encoder"), 0)
    assert texts == {undisturbed["choices"][0]["message"]["content"]}
