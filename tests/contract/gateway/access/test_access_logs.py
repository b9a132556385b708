"""What is written about requests: the audit log, the access log and the metrics. A key is nowhere, but its id is."""

from __future__ import annotations

import asyncio
import io
import logging
import re
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import websockets
from pydantic import ValidationError
from support.fakes.frontend import MODEL, FakeFrontend, fails, says
from support.fakes.gateway import CHAT, client_of, gateway_app, gateway_client, gateway_server
from support.keys import KeyStore, secret_of
from support.waiting import until
from triptych.errors import InternalError
from triptych_common.settings import startup_error
from triptych_common.telemetry.logs import configure_logging
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

PROMPT = "a prompt that nobody else may read"
SAID = {**CHAT, "messages": [{"role": "user", "content": PROMPT}]}


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    store = KeyStore(tmp_path / "keys.json")
    store.add("key")
    store.add("operator", operator=True)
    return store


def lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


async def test_a_line_per_request_with_who_what_and_how_it_ended(keys: KeyStore, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    keys.add("other model", models=["another/model"])
    frontend = FakeFrontend()
    async with gateway_client(frontend, api_keys_file=keys.path, audit_log=str(log)) as client:
        await client.post("/v1/chat/completions", json=SAID, headers={**keys.headers("key"), "x-request-id": "r-1"})
        await client.post("/v1/chat/completions", json={**SAID, "stream": True}, headers=keys.headers("key"))
        await client.post("/v1/chat/completions", json=SAID, headers=keys.headers("other model"))
        await client.post("/v1/chat/completions", json=SAID, headers={"x-api-key": "wrong"})
        await client.get("/v1/models/no/such", headers=keys.headers("key"))
        await client.get("/live")
    whole, streamed, other, wrong, missing = lines(log)
    assert log.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", whole.pop("time"))
    assert whole.pop("duration_ms") > 0
    assert whole == {
        "event": "request",
        "request_id": "r-1",
        "key": keys.id("key"),
        "tenant": keys.id("key"),
        "client": "127.0.0.1",
        "method": "POST",
        "route": "/v1/chat/completions",
        "model": MODEL.name,
        "status": 200,
        "refused": None,
        "aborted": False,
        "prompt_tokens": 7,
        "completion_tokens": 3,
    }
    assert (streamed["status"], streamed["completion_tokens"]) == (200, 3)
    assert (other["key"], other["status"], other["refused"]) == (keys.id("other model"), 403, "model")
    assert (wrong["key"], wrong["tenant"], wrong["status"], wrong["refused"]) == (None, None, 401, "wrong_key")
    assert (missing["route"], missing["status"], missing["model"]) == ("/v1/models/{name:path}", 404, "no/such")


async def test_turns_background_responses_and_clients_that_leave_are_told(keys: KeyStore, tmp_path: Path) -> None:
    log, frontend = tmp_path / "audit.jsonl", FakeFrontend()
    async with gateway_server(frontend, api_keys_file=keys.path, audit_log=str(log)) as (host, port):
        address = f"{host}:{port}/v1/responses"
        async with websockets.connect(f"ws://{address}", additional_headers=keys.headers("key")) as connection:
            await connection.send(orjson.dumps({"type": "response.create", "model": MODEL.name, "input": PROMPT}).decode())
            while orjson.loads(await connection.recv())["type"] != "response.completed":
                pass
        async with httpx.AsyncClient(headers=keys.headers("key")) as client:
            await client.post(f"http://{address}", json={"model": MODEL.name, "input": PROMPT, "background": True})
            await until(lambda: any(line["event"] == "background" for line in lines(log)))
            frontend.script = says("a", "b", gate=asyncio.Semaphore(1))
            body = {"model": MODEL.name, "prompt": PROMPT, "stream": True}
            async with client.stream("POST", f"http://{host}:{port}/v1/completions", json=body) as answer:
                await anext(answer.aiter_bytes())
        await until(lambda: any(line.get("aborted") for line in lines(log)))
    told = {line["event"]: line for line in lines(log)}
    assert (told["turn"]["route"], told["turn"]["status"], told["turn"]["completion_tokens"]) == ("/v1/responses", 200, 3)
    assert (told["background"]["key"], told["background"]["completion_tokens"]) == (keys.id("key"), 3)
    [left] = [line for line in lines(log) if line.get("aborted")]
    assert (left["route"], left["completion_tokens"]) == ("/v1/completions", None)


async def test_the_access_log_and_the_metrics_name_keys_and_reasons(keys: KeyStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="triptych_gateway.access.middleware")
    keys.add("once", requests_per_minute=1)
    async with gateway_client(api_keys_file=keys.path) as client:
        for name in ("once", "once", "key"):
            await client.post("/v1/chat/completions", json=SAID, headers=keys.headers(name))
        await client.post("/v1/chat/completions", json=SAID)
        await client.get("/load", headers=keys.headers("key"))
        metrics = (await client.get("/metrics", headers=keys.headers("operator"))).text.splitlines()
    said = [record.getMessage() for record in caplog.records if record.name == "triptych_gateway.access.middleware"]
    assert [line.rpartition(" key ")[2] for line in said[:3]] == [keys.id("once"), keys.id("once"), keys.id("key")]
    assert " key " not in said[3]
    for reason in ("requests", "no_key", "operator"):
        assert f'triptych_gateway_access_refused_total{{reason="{reason}"}} 1.0' in metrics


async def test_secrets_are_nowhere(
    keys: KeyStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs requests of all kinds with known keys, and looks for them in all that is written and answered."""
    monkeypatch.setattr("triptych_gateway.access.key_ring.RELOAD_INTERVAL_S", 0.01)
    shown = io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    configure_logging("gateway", "DEBUG", "json")
    root.addHandler(caplog.handler)
    single, password, log = "the-single-key-0123456789", "password-of-the-store", tmp_path / "audit.jsonl"
    keys.add("revoked", revoked="2020-01-01T00:00:00Z")
    texts = [*keys.texts.values(), single]
    frontend, answers = FakeFrontend(), list[str]()
    settings = {
        "api_key": single,
        "api_keys_file": keys.path,
        "audit_log": str(log),
        "rate_limit_store": f"redis://:{password}@127.0.0.1:1/0",
    }
    keys.add("limited", requests_per_minute=100, tokens_per_minute=1000)
    try:
        async with gateway_app(frontend, **settings) as app, client_of(app) as client:
            answers.append(repr(app.state.gateway.settings) + repr(vars(app.state.gateway.access._ring)))
            for text in (*texts, keys.texts["limited"]):
                # The form of a key tells it from other text, wherever a client puts it by mistake. The single key has no form.
                mistaken = text if text != single else "by mistake"
                for headers in (
                    {"authorization": f"Bearer {text}"},
                    {"x-api-key": text},
                    {"authorization": text},
                    {"x-api-key": text + "x"},
                ):
                    frontend.script = says("Hello")
                    for body in (
                        SAID,
                        {**SAID, "model": mistaken},
                        {**SAID, "stream": True},
                        {**SAID, "n": 0},
                        {**SAID, mistaken: 1},
                    ):
                        answer = await client.post("/v1/chat/completions", json=body, headers=headers)
                        # What a client puts into its own body by mistake, it may get back.
                        answers.append(answer.text if text not in orjson.dumps(body).decode() else "")
                    await client.post("/v1/responses", json={"model": mistaken, "input": "Hi", "background": True}, headers=headers)
                    frontend.script = fails(InternalError("broken"), after=1)
                    answers.append((await client.post("/v1/chat/completions", json={**SAID, "stream": True}, headers=headers)).text)
                    for path in ("/v1/models", f"/v1/{mistaken}", "/load", "/metrics", "/openapi.json"):
                        answer = await client.get(path, headers=headers)
                        answers.append(answer.text + repr(answer.headers))
            await until(lambda: not app.state.responses.background.runs)
            assert "a background response failed" in shown.getvalue()
            keys.path.write_text(
                '{"version": 1, "keys": [{"id": "abcdefgh", "hash": "' + texts[0] + '", "created": "' + texts[0] + '"}]}'
            )
            await until(lambda: "cannot be used" in shown.getvalue())
    finally:
        root.handlers[:], root.level = handlers, level
    logs = shown.getvalue() + caplog.text + log.read_text()
    written = logs + "".join(answers)
    assert keys.id("key") in written
    for text in texts[:-1]:
        assert secret_of(text) not in written
    assert single not in written
    assert password not in written
    assert PROMPT not in logs


def test_settings_that_are_refused_show_no_key() -> None:
    with pytest.raises(ValidationError) as caught:
        GatewaySettings(api_key="a-secret", rate_limit_store="memcached://user:a-password@host")  # type: ignore[arg-type]
    said = str(startup_error(caught.value))
    assert "rate_limit_store: must be memory, redis://HOST:PORT/DB" in said
    assert "(given: 'memcached://...@host')" in said
    assert "a-secret" not in said
    assert "a-password" not in repr(GatewaySettings(rate_limit_store="redis://:a-password@host"))


async def test_keys_that_come_and_go(keys: KeyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_gateway.access.key_ring.RELOAD_INTERVAL_S", 0.01)
    log = tmp_path / "audit.jsonl"
    async with gateway_app(FakeFrontend(), api_keys_file=keys.path, audit_log=str(log)) as app, client_of(app) as client:

        async def status(name: str) -> int:
            return (await client.get("/v1/models", headers=keys.headers(name))).status_code

        async def becomes(name: str, wanted: int) -> None:
            async with asyncio.timeout(10):
                while await status(name) != wanted:  # noqa: ASYNC110 - a thread reads the file
                    await asyncio.sleep(0.005)

        keys.add("new")
        await becomes("new", 200)
        keys.change("new", revoked="2021-01-01T00:00:00Z")
        await becomes("new", 401)
        keys.change("new", revoked=None, requests_per_minute=1_000_000)
        await becomes("new", 200)
        good = keys.path.read_bytes()
        keys.path.write_bytes(b'{"version": 1, "keys": [{"id": "x"')
        failures = app.state.gateway.metrics.key_reload_failures
        await until(lambda: failures._value.get() == 1)
        assert await status("new") == 200, "the keys from before stay"
        keys.path.unlink()
        await until(lambda: failures._value.get() == 2)
        assert await status("new") == 200
        keys.path.write_bytes(good)
        keys.remove("new")
        await becomes("new", 401)
    changes = [line for line in lines(log) if line["event"] == "keys"]
    new = changes[0]["added"][0]
    assert [(one["added"], one["changed"], one["removed"]) for one in changes] == [
        ([new], [], []),
        ([], [new], []),
        ([], [new], []),
        ([], [], [new]),
    ]


async def test_a_secret_of_kubernetes_is_swapped_by_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_gateway.access.key_ring.RELOAD_INTERVAL_S", 0.01)
    for name in ("..v1", "..v2"):
        (tmp_path / name).mkdir()
    old, new = KeyStore(tmp_path / "..v1" / "keys.json"), KeyStore(tmp_path / "..v2" / "keys.json")
    old.add("key")
    new.add("key")
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "keys.json").symlink_to("..data/keys.json")
    async with gateway_client(api_keys_file=tmp_path / "keys.json") as client:
        assert (await client.get("/v1/models", headers=old.headers("key"))).status_code == 200
        (tmp_path / "..next").symlink_to("..v2")
        (tmp_path / "..next").rename(tmp_path / "..data")
        async with asyncio.timeout(10):
            while (await client.get("/v1/models", headers=new.headers("key"))).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert (await client.get("/v1/models", headers=old.headers("key"))).status_code == 401


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (b"", "EOF"),
        (b'{"version": 2, "keys": []}', "version: Input should be 1"),
        (b'{"version": 1, "keys": [{"id": "abcdefgh"}]}', "key abcdefgh: hash: Field required"),
    ],
)
def test_a_wrong_file_refuses_the_start(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Exception, match=said) as caught:
        create_app(GatewaySettings(api_keys_file=path))
    assert str(caught.value).startswith(f"cannot use the API keys in {path}: ")
