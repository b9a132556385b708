"""What docs/troubleshooting.md lists under "By symptom": real processes show each symptom, and say what the page quotes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import support.builders.media_files as media
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.certificates import write_role
from support.keys import KeyStore
from support.processes.suite import ServiceProcess, Suite
from triptych_cli.stack.ports import free_port
from triptych_common.rpc.security.roles import Role

PAGE = Path(__file__).parents[3] / "docs" / "troubleshooting.md"
#: Longest wait for a service to start, or to say something, on a busy machine, in seconds.
_WAIT_S = 120.0
#: Texts that a service said.
Said = list[str]


def rows() -> dict[str, Said]:
    """Symptom -> what the page quotes. `…` in a quote stands for anything."""
    section = PAGE.read_text().split("\n## By symptom\n")[1].split("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {symptom: re.findall("“([^”]+)”", says) for symptom, says, _ in cells[1:]}


def is_said(quote: str, said: Said) -> bool:
    pattern = ".*".join(re.escape(part) for part in quote.split("…"))
    return any(re.search(pattern, text) for text in said)


def eventually(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < until_s, "it never happened"
        time.sleep(0.05)


class Trial:
    """A suite with one service of each kind, or fewer, and a client."""

    def __init__(self, directory: Path, **flags: list[str]) -> None:
        self.suite = Suite({kind: int(kind in flags) for kind in ("encoder", "engine", "frontend", "gateway")}, flags, directory)
        self.client = httpx.Client(timeout=_WAIT_S, trust_env=False)

    def service(self, kind: str) -> ServiceProcess:
        return self.suite.services[kind][0]

    def log(self, kind: str) -> str:
        return self.service(kind).log.read_text() if self.service(kind).log.exists() else ""

    def get(self, path: str) -> httpx.Response:
        return self.client.get(f"http://{self.service('gateway').address}{path}")

    def until_ready(self) -> None:
        def is_ready() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return self.get("/ready").status_code == 200
            return False

        eventually(is_ready)

    def ask(self, text: str = "hi", picture: bytes = b"", key: str = "", **fields: object) -> httpx.Response:
        content: list[dict[str, object]] = [{"type": "text", "text": text}]
        if picture:
            url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
            content.append({"type": "image_url", "image_url": {"url": url}})
        body = {"model": "served", "messages": [{"role": "user", "content": content}], "max_tokens": 4, **fields}
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return self.client.post(f"http://{self.service('gateway').address}/v1/chat/completions", json=body, headers=headers)


@contextlib.contextmanager
def trial(directory: Path, *, ready: bool = True, **flags: list[str]) -> Iterator[Trial]:
    """Services with the flags, by kind. A kind without flags does not run."""
    one = Trial(directory, **flags)
    try:
        for service in one.suite.all:
            service.start()
        if ready:
            one.until_ready()
        yield one
    finally:
        for service in reversed(one.suite.all):
            service.kill()
        one.client.close()


#: Flags of a gateway with its defaults.
PLAIN = ["--log-level", "INFO"]


def model(*flags: str) -> list[str]:
    """Flags of a service with the tiny model that sees pictures."""
    return ["--model", str(media.checkpoint("llava_siglip")), "--served-model-name", "served", *flags]


def engine(*flags: str) -> list[str]:
    return model("--kv-cache-memory", "16M", *flags)


def ends_at_once(*argv: str, env: dict[str, str] | None = None) -> Said:
    """What a service says that ends by itself with an error."""
    command = [sys.executable, "-m", *argv]
    ended = subprocess.run(command, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=_WAIT_S)
    assert ended.returncode not in (0, None)
    return [ended.stdout + ended.stderr]


def unknown_variable(_: Path) -> Said:
    return ends_at_once("triptych_engine", env={"TRIPTYCH_ENGINE_KV_CACHE": "1G"})


def port_in_use(_: Path) -> Said:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return ends_at_once("triptych_gateway", "--port", str(taken.getsockname()[1]))


def no_frontend(directory: Path) -> Said:
    with trial(directory, ready=False, gateway=["--frontend-addresses", f"127.0.0.1:{free_port('127.0.0.1')}"]) as one:
        eventually(lambda: "is away" in one.log("gateway"))
        answers = [one.get("/ready"), one.ask()]
        assert [answer.status_code for answer in answers] == [503, 503]
        return [one.log("gateway"), *(answer.text for answer in answers)]


def another_model(directory: Path) -> Said:
    other = save_random_model(directory / "other", a_tiny_llama_config())
    flags = {"frontend": model(), "gateway": PLAIN}
    with trial(directory, ready=False, engine=["--model", str(other), "--kv-cache-memory", "16M"], **flags) as one:
        eventually(lambda: "fingerprint" in one.log("frontend"))
        return [one.log("frontend")]


def encoder_killed(directory: Path) -> Said:
    with trial(directory, engine=engine(), encoder=model(), frontend=model(), gateway=PLAIN) as one:
        eventually(lambda: one.ask(picture=media.image()).status_code == 200)
        one.service("encoder").kill()
        refused = one.ask(picture=media.image(33, 21))
        assert (refused.status_code, one.ask().status_code) == (503, 200)
        return [one.log("frontend"), refused.text]


def unusable_keys(directory: Path) -> Said:
    store = KeyStore(directory / "keys.json")
    old = store.add("old")
    with trial(directory, engine=engine(), frontend=model(), gateway=["--api-keys-file", str(store.path)]) as one:
        new = store.add("new", models="served")
        eventually(lambda: "cannot be used" in one.log("gateway"))
        answers = [one.ask(key=old), one.ask(key=new)]
        assert [answer.status_code for answer in answers] == [200, 401]
        return [one.log("gateway"), answers[1].text]


def wrong_certificate(directory: Path) -> Said:
    tls_dir = str(write_role(directory / "tls", Role.ENCODER))
    return ends_at_once("triptych_engine", *engine("--tls-dir", tls_dir, "--port", "0", "--control-port", "0"))


def other_authority(directory: Path) -> Said:
    ours, others = (str(write_role(directory / role, role, ca)) for role, ca in ((Role.ENGINE, "own"), (Role.FRONTEND, "other")))
    with trial(directory, ready=False, engine=engine("--tls-dir", ours), frontend=model("--tls-dir", others)) as one:
        eventually(lambda: "is refused" in one.log("frontend"))
        return [one.log("frontend")]


def full_queue(directory: Path) -> Said:
    with trial(directory, engine=engine("--max-num-seqs", "1", "--max-waiting", "1"), frontend=model(), gateway=PLAIN) as one:
        with ThreadPoolExecutor(6) as pool:
            answers = [*pool.map(lambda _: one.ask(max_tokens=200, ignore_eos=True), range(6))]
        assert {answer.status_code for answer in answers} == {200, 429}
        return [next(answer.text for answer in answers if answer.status_code == 429)]


def late_first_token(directory: Path) -> Said:
    """One place, three requests."""
    with trial(directory, engine=engine("--max-num-seqs", "1"), frontend=model(), gateway=PLAIN) as one:
        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(one.ask, max_tokens=400, ignore_eos=True) for _ in range(3)]
            eventually(lambda: one.get("/load").json()["engines"][0]["num_waiting"] > 0)
            said = one.get("/load").text
            assert all(call.result().status_code == 200 for call in calls)
        return [said]


def no_room_for_a_prompt(directory: Path) -> Said:
    with trial(directory, engine=model("--kv-cache-memory", "64K"), frontend=model(), gateway=PLAIN) as one:
        refused = one.ask("word " * 200)
        assert refused.status_code == 400
        return [refused.text, one.log("engine")]


def no_traces(directory: Path) -> Said:
    collector = ["--otlp-traces-endpoint", f"http://127.0.0.1:{free_port('127.0.0.1')}"]
    with trial(directory, engine=engine(), frontend=model(), gateway=collector) as one:
        assert one.ask().status_code == 200
        eventually(lambda: "collector" in one.log("gateway"))
        eventually(lambda: not re.search(r"triptych_gateway_spans_dropped_total 0\b", one.get("/metrics").text))
        return [one.log("gateway"), one.get("/metrics").text]


def broken_at_a_restart(directory: Path) -> Said:
    with (
        trial(directory, engine=engine("--shutdown-grace-s", "0.1"), frontend=model(), gateway=PLAIN) as one,
        ThreadPoolExecutor(1) as pool,
    ):
        call = pool.submit(one.ask, max_tokens=1000, ignore_eos=True, stream=True)
        eventually(lambda: one.get("/load").json()["engines"][0]["num_running"] == 1)
        assert asyncio.run(one.service("engine").stop(_WAIT_S)) == 0
        return [one.log("engine"), call.result().text]


def slow_tokens(directory: Path) -> Said:
    """An engine without kernels, and no compiler that could build them."""
    env = {"TRIPTYCH_CACHE": str(directory), "CXX": "no-compiler", "PATH": str(directory)}
    service = ServiceProcess("engine", engine(), directory / "engine.log", env)
    try:
        service.start()
        eventually(lambda: service.log.exists() and "ready:" in service.log.read_text())
    finally:
        service.kill()
    return [service.log.read_text()]


SYMPTOMS: dict[str, Callable[[Path], Said]] = {
    "A service ends as soon as it starts": unknown_variable,
    "A service ends as soon as it starts, and another program has its port": port_in_use,
    "A service with certificates ends as soon as it starts": wrong_certificate,
    "Every request gets 503": no_frontend,
    "A frontend does not become ready although an engine runs": another_model,
    "Services do not reach each other since they have certificates": other_authority,
    "Text is answered, pictures get 503": encoder_killed,
    "A new API key gets 401": unusable_keys,
    "Requests get 429 `queue_full`": full_queue,
    "The first token comes late": late_first_token,
    "A long prompt gets 400": no_room_for_a_prompt,
    "Tokens come slowly on a CPU": slow_tokens,
    "Streams break when a service restarts": broken_at_a_restart,
    "No traces arrive": no_traces,
}


@pytest.mark.slow
@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_it_says_what_the_page_quotes(symptom: str, tmp_path: Path) -> None:
    quotes, said = rows()[symptom], SYMPTOMS[symptom](tmp_path)
    assert quotes
    for quote in quotes:
        assert is_said(quote, said), f"nothing says {quote!r}:\n" + "\n".join(said)


def test_each_symptom_of_the_page_is_tried() -> None:
    assert set(rows()) == set(SYMPTOMS)
