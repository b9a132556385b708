"""Two tenants on one stack: neither finds anything of the other in a cache, and nothing of a key is in any log."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
import support.builders.media_files as media
from support.keys import KeyStore, secret_of
from support.stack import Serving, serving
from triptych.v1 import control_pb2, control_pb2_grpc

pytestmark = [pytest.mark.model, pytest.mark.timeout(300), pytest.mark.long]
#: Longer than several blocks of the prefix cache.
TEXT = "A long text that several blocks of the cache are made of. " * 8
PICTURE = f"data:image/png;base64,{base64.b64encode(media.image(40, 30)).decode()}"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyStore:
    store = KeyStore(tmp_path_factory.mktemp("keys") / "keys.json")
    for name in ("one", "other"):
        store.add(name)
    store.add("new key of one", tenant=store.id("one"))
    store.add("operator", operator=True)
    return store


@pytest.fixture(scope="module")
def running(keys: KeyStore) -> Iterator[tuple[Serving, str]]:
    flags = ["--engine.kv-cache-memory", "16M", "--engine.dtype", "float32", "--encoder.dtype", "float32", "--log-level", "DEBUG"]
    flags += ["--gateway.api-keys-file", str(keys.path), "--gateway.audit-log", str(keys.path.with_name("audit.jsonl"))]
    with serving(str(media.checkpoint("llava_siglip")), *flags) as stack:
        yield stack, stack.wait_until_started()


def ask(url: str, keys: KeyStore, name: str, *content: dict[str, Any]) -> httpx.Response:
    with httpx.Client(base_url=url, headers=keys.headers(name), timeout=120, trust_env=False) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "messages": [{"role": "user", "content": list(content)}], "max_tokens": 2, "temperature": 0}
        return client.post("/v1/chat/completions", json=body)


def cached_tokens(response: httpx.Response) -> int:
    assert response.status_code == 200, response.text
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_tenants_share_no_prefix(running: tuple[Serving, str], keys: KeyStore) -> None:
    def cached(name: str) -> int:
        return cached_tokens(ask(running[1], keys, name, {"type": "text", "text": TEXT}))

    assert cached("one") == 0
    assert cached("one") > 60
    assert cached("other") == 0, "the first tenant's prompt was found"
    assert cached("other") > 60
    assert cached("new key of one") > 60


def test_tenants_share_no_media(running: tuple[Serving, str], keys: KeyStore) -> None:
    def look(name: str, url: str | None) -> httpx.Response:
        part: dict[str, Any] = {"type": "image_url", "image_url": {"url": url} if url else None, "uuid": "my picture"}
        return ask(running[1], keys, name, part, {"type": "text", "text": "What is it?"})

    def found(response: httpx.Response) -> str:
        assert response.status_code == 200, response.text
        return str(response.json()["triptych"]["media"][0]["encoder_cache"])

    assert found(look("one", PICTURE)) == "miss"
    assert found(look("one", None)) == "hit"
    unknown = look("other", None)
    assert (unknown.status_code, "is not known here" in unknown.text) == (400, True)
    assert found(look("other", PICTURE)) == "miss", "the first tenant's picture was found"
    assert found(look("new key of one", None)) == "hit"


def test_keys_are_in_no_log_and_no_answer_of_a_control_port(running: tuple[Serving, str], keys: KeyStore) -> None:
    stack, url = running
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
        texts = keys.texts.values()
        assert [client.get("/metrics", headers={"x-api-key": text}).status_code for text in texts] == [403, 403, 403, 200]
        wrong = keys.texts["one"][:-1] + "_"
        assert client.get("/v1/models", headers={"x-api-key": wrong}).status_code == 401
    answers = ""
    for name, service in stack.services().items():
        arguments = service.cmdline()
        if name != "gateway":
            with grpc.insecure_channel(f"127.0.0.1:{arguments[arguments.index('--control-port') + 1]}") as channel:
                answers += str(control_pb2_grpc.ControlServiceStub(channel).GetServerInfo(control_pb2.GetServerInfoRequest()))
    audit = keys.path.with_name("audit.jsonl").read_text()
    assert keys.id("one") in stack.log
    assert keys.id("one") in audit
    for text in (*keys.texts.values(), wrong):
        assert secret_of(text) not in stack.log + audit + answers
    assert TEXT[:40] not in audit
