"""A Kubernetes control plane on loopback: etcd, kube-apiserver and kube-controller-manager, without nodes.

Objects are admitted, defaulted and validated, and their controllers run: Deployments make ReplicaSets and Pods, and EndpointSlices
follow Services. Nothing runs the Pods; kubelet.py plays who would.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from support.chart import Object

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager")
#: Seconds for a program to be ready. They take 4 on an idle machine.
START_S = 120.0


def find_programs(directory: Path) -> dict[str, Path]:
    """The three programs: in the directory, or etcd on PATH. Raises FileNotFoundError with what is missing."""
    found = {name: shutil.which(name, path=str(directory)) for name in PROGRAMS}
    found["etcd"] = found["etcd"] or shutil.which("etcd")
    if missing := [name for name, path in found.items() if path is None]:
        raise FileNotFoundError(f"{directory} has no {', '.join(missing)} (KUBERNETES_BIN)")
    return {name: Path(path) for name, path in found.items() if path}


def eventually(check: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """What `check` returns, once that is true."""
    until = time.monotonic() + timeout_s
    while not (found := check()):
        if time.monotonic() > until:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.1)
    return found


class ControlPlane:
    """Calls of the API server, as an administrator. Objects are dicts; a refusal raises httpx.HTTPStatusError with the reason."""

    def __init__(self, port: int, token: str, certificate: Path, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self._http = httpx.Client(
            base_url=f"https://127.0.0.1:{port}",
            headers={"authorization": f"Bearer {token}"},
            verify=ssl.create_default_context(cafile=str(certificate)),
            timeout=30,
            trust_env=False,
        )

    def call(self, method: str, path: str, body: Any = None, *, kind: str = "application/json", **query: str) -> Any:
        given = {"json": body, "headers": {"content-type": kind}} if body is not None else {}
        answer = self._http.request(method, path, params=query, **given)  # type: ignore[arg-type]
        if answer.is_error:
            raise httpx.HTTPStatusError(f"{method} {path}: {answer.text}", request=answer.request, response=answer)
        return answer.json()

    def is_ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self._http.get("/readyz").is_success
        return False

    def list(self, path: str, **query: str) -> list[Object]:
        return list(self.call("GET", path, **query)["items"])

    def named(self, path: str) -> dict[str, Object]:
        """The objects of a list, by name."""
        return {found["metadata"]["name"]: found for found in self.list(path)}

    def create(self, found: Object, **query: str) -> Object:
        return dict(self.call("POST", self._collection(found), found, **query))

    def merge(self, path: str, change: Any) -> Object:
        """Patch an object or its subresource."""
        return dict(self.call("PATCH", path, change, kind="application/merge-patch+json"))

    def _collection(self, found: Object) -> str:
        resource = self._resources(found["apiVersion"])[found["kind"]]
        prefix = f"/api/{found['apiVersion']}" if "/" not in found["apiVersion"] else f"/apis/{found['apiVersion']}"
        namespace = f"/namespaces/{found['metadata']['namespace']}" if resource["namespaced"] else ""
        return f"{prefix}{namespace}/{resource['name']}"

    @functools.cache  # noqa: B019
    def _resources(self, version: str) -> dict[str, Any]:
        prefix = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        found = self.call("GET", prefix)["resources"]
        return {resource["kind"]: resource for resource in found if "/" not in resource["name"]}


@contextlib.contextmanager
def running(programs: dict[str, Path], work: Path) -> Iterator[ControlPlane]:
    """A control plane whose state and logs are in `work`. Its processes have ended when this returns."""
    with contextlib.ExitStack() as stack:
        client, peer, port, managers = _free_ports(4)
        start = functools.partial(_start, stack, programs, work)
        etcd, own = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        urls = ["--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", own]
        urls += ["--initial-advertise-peer-urls", own, "--initial-cluster", f"default={own}"]
        # The state lives as long as the test: nothing waits for the disk.
        start("etcd", ["--data-dir", str(work / "etcd"), "--unsafe-no-fsync", *urls])
        token = secrets.token_urlsafe()
        (work / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
        (work / "sa.key").write_bytes(_private_key())
        flags = {
            "etcd-servers": etcd,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "endpoint-reconciler-type": "none",
            "secure-port": port,
            "cert-dir": work / "certs",
            "service-cluster-ip-range": "10.0.0.0/16",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": work / "sa.key",
            "service-account-signing-key-file": work / "sa.key",
            "token-auth-file": work / "tokens.csv",
            "authorization-mode": "RBAC",
            "allow-privileged": "false",
        }
        server = start("kube-apiserver", [f"--{name}={value}" for name, value in flags.items()])
        certificate = work / "certs" / "apiserver.crt"
        eventually(lambda: certificate.exists() or server.poll() is not None, "a certificate of the API server", START_S)
        kubeconfig = work / "kubeconfig"
        kubeconfig.write_text(_kubeconfig(port, token, certificate))
        plane = ControlPlane(port, token, certificate, kubeconfig)
        eventually(lambda: plane.is_ready() or server.poll() is not None, "an API server that is ready", START_S)
        if server.poll() is not None:
            raise AssertionError((work / "kube-apiserver.log").read_text()[-2000:])
        flags = {
            "kubeconfig": kubeconfig,
            "service-account-private-key-file": work / "sa.key",
            "use-service-account-credentials": "false",
            "leader-elect": "false",
            # The node of kubelet.py is no machine whose silence would mean anything.
            "controllers": "*,-node-lifecycle-controller",
            "bind-address": "127.0.0.1",
            "secure-port": managers,
            "cert-dir": work / "certs",
        }
        start("kube-controller-manager", [f"--{name}={value}" for name, value in flags.items()])
        yield plane


def _start(
    stack: contextlib.ExitStack, programs: dict[str, Path], work: Path, name: str, arguments: Sequence[str]
) -> subprocess.Popen[bytes]:
    log = stack.enter_context((work / f"{name}.log").open("wb"))
    process = subprocess.Popen([programs[name], *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    # Their state is thrown away, and on SIGTERM the API server waits for open requests.
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def _private_key() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _kubeconfig(port: int, token: str, certificate: Path) -> str:
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(certificate)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        "current-context": "test",
    }
    return yaml.safe_dump(config)
