"""`triptych serve` with certificates: HTTPS outside, mutual TLS inside, certificates that are replaced under load."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import support.builders.media_files as media
from support.stack import Serving, serving
from triptych import Client, TLSConfig
from triptych.v1 import control_pb2, control_pb2_grpc, engine_pb2, engine_pb2_grpc
from triptych_cli.certs import certs
from triptych_common.rpc.security.roles import Role

pytestmark = [pytest.mark.model, pytest.mark.timeout(300), pytest.mark.long]
#: Longest wait for all services to use new certificates, in seconds.
_RENEWAL_S = 60
_NUM_CLIENTS = 4


@dataclass
class Secured:
    """A stack with certificates in a directory."""

    serving: Serving
    url: str
    certs: Path

    def http(self) -> httpx.Client:
        context = ssl.create_default_context(cafile=self.certs / "ca.crt")
        return httpx.Client(base_url=self.url, verify=context, timeout=120, trust_env=False)

    def address(self, service: str, flag: str = "--port") -> str:
        arguments = self.serving.services()[service].cmdline()
        return f"127.0.0.1:{arguments[arguments.index(flag) + 1]}"

    def channel(self, service: str, role: Role, flag: str = "--port") -> grpc.Channel:
        """A connection with the certificate of a role."""
        folder = self.certs / role
        files = ((folder / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt"))
        options = [("grpc.ssl_target_name_override", Role(service).dns_name)]
        return grpc.secure_channel(self.address(service, flag), grpc.ssl_channel_credentials(*files), options)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("certs")
    certs(directory, days=1, names=(), force=False)
    flags = ["--certs", str(directory), "--gateway.https-dir", str(directory / "https"), "--engine.kv-cache-memory", "16M"]
    with serving(str(media.checkpoint("llava_siglip")), *flags) as server:
        url = server.wait_until_started()
        for service in ("frontend", "engine"):  # both find the encoder by themselves, a little later on a busy machine
            server.wait_for(rf"{service} +│? *\S+ INFO +{service} +encoder at \S+ serves")
        yield Secured(server, url, directory)


def _chat(http: httpx.Client, *, picture: bool, stream: bool = False) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(media.image(30, 20)).decode()}"
    content: list[dict[str, Any]] = [{"type": "text", "text": "What is this?"}]
    if picture:
        content.insert(0, {"type": "image_url", "image_url": {"url": url}})
    model = http.get("/v1/models").json()["data"][0]["id"]
    messages = [{"role": "user", "content": content}]
    return {"model": model, "messages": messages, "max_tokens": 64, "ignore_eos": True, "temperature": 0, "stream": stream}


def test_text_and_pictures_are_answered(secured: Secured) -> None:
    with secured.http() as http:
        for picture in (False, True):
            response = http.post("/v1/chat/completions", json=_chat(http, picture=picture))
            assert response.status_code == 200, f"{response.text}\n{secured.serving.log}"
            answer = response.json()
            assert answer["usage"]["completion_tokens"] == 64
            assert len(answer["triptych"]["media"]) == picture
        assert "triptych_gateway_certificate_expiry_timestamp_seconds" in http.get("/metrics").text


def test_a_client_with_its_own_certificate_is_answered_by_the_frontend(secured: Secured) -> None:
    folder = secured.certs / "client"
    tls = TLSConfig(
        root_certificates=folder / "ca.crt",
        certificate=folder / "tls.crt",
        private_key=folder / "tls.key",
        server_name="frontend.triptych.internal",
    )
    with Client(secured.address("frontend"), tls=tls) as client:
        assert client.chat("Hello", max_tokens=4, ignore_eos=True).usage.completion_tokens == 4


@pytest.mark.parametrize("service", ["frontend", "encoder", "engine"])
@pytest.mark.parametrize("flag", ["--port", "--control-port"])
def test_nobody_gets_in_without_a_certificate(secured: Secured, service: str, flag: str) -> None:
    with grpc.insecure_channel(secured.address(service, flag)) as channel, pytest.raises(grpc.RpcError) as caught:
        control_pb2_grpc.ControlServiceStub(channel).GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=30)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_an_engine_refuses_a_gateway(secured: Secured) -> None:
    with secured.channel("engine", Role.GATEWAY) as channel, pytest.raises(grpc.RpcError) as caught:
        engine_pb2_grpc.EngineServiceStub(channel).Describe(engine_pb2.EngineServiceDescribeRequest(), timeout=30)
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    secured.serving.wait_for(r"refused: triptych\.v1\.EngineService/Describe from ipv4:\S+, role gateway")


@pytest.mark.parametrize("service", ["frontend", "encoder", "engine"])
def test_an_operator_sees_where_the_certificates_are_and_no_key(secured: Secured, service: str) -> None:
    with secured.channel(service, Role.OPERATOR, "--control-port") as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        info = stub.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=30)
    assert info.settings["tls_dir"] == str(secured.certs / service)
    keys = [line for path in secured.certs.rglob("*.key") for line in path.read_text().splitlines() if "--" not in line]
    assert keys
    assert not any(line in str(info) + secured.serving.log for line in keys)


def test_certificates_are_replaced_under_load_and_no_request_is_lost(secured: Secured) -> None:
    renewed, num_answers = threading.Event(), 0
    earlier = secured.serving.log.count("the certificate was renewed")

    def ask(number: int) -> int:
        """Chat until the certificates are renewed, then once more. Returns the number of answers."""
        with secured.http() as http:
            body, num_answers = _chat(http, picture=bool(number % 2), stream=True), 0
            is_last = False
            while not is_last:
                is_last = renewed.is_set()
                with http.stream("POST", "/v1/chat/completions", json=body) as response:
                    lines = [line[6:] for line in response.iter_lines() if line]
                assert response.status_code == 200, lines
                assert lines[-1] == "[DONE]", lines
                assert json.loads(lines[-2])["choices"][0]["finish_reason"] == "length"
                num_answers += 1
            return num_answers

    with ThreadPoolExecutor(_NUM_CLIENTS) as clients:
        asking = [clients.submit(ask, number) for number in range(_NUM_CLIENTS)]
        try:
            certs(secured.certs, days=2, names=(), force=True)
            # HTTPS of the gateway, and mutual TLS of the four services.
            secured.serving.wait_for(r"the certificate was renewed", times=earlier + 5, timeout_s=_RENEWAL_S)
            # Gateway to frontend, frontend to engine and encoder, engine to encoder.
            moved = r"(frontend|engine|encoder) at \S+ takes no new work: another connection has the renewed certificate"
            secured.serving.wait_for(moved, times=4, timeout_s=_RENEWAL_S)
        finally:
            renewed.set()
        num_answers = sum(one.result() for one in asking)
    assert num_answers > _NUM_CLIENTS
    assert "went away" not in secured.serving.log
    with secured.http() as http:
        assert http.get("/ready").status_code == 200
