"""Frameworks and clients that people use, unmodified, against a real stack. Each program raises, or prints "ok" at its end.

They are downloaded: `make test-ecosystem`. A test is skipped where its packages cannot be had, and says which. Where an answer must
mean something, the stack is a gateway in front of `triptych mock`, which answers what its requests tell it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.codegen import Tools
from support.downloads import npm_packages, python_environment
from support.scripted import scripted_gateway
from support.stack import Stack, running_stack
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(1200)]
PROGRAMS = Path(__file__).with_name("programs")
PICTURE = Path(__file__).parents[2] / "examples" / "three-shapes.png"
#: Program -> its packages. Each has an environment of its own, because they disagree about the version of `openai`.
FRAMEWORKS = {
    "langchain_app.py": ("langchain-openai>=1", "numpy"),
    "litellm_app.py": ("litellm>=1.80", "mcp"),
    "instructor_app.py": ("instructor>=1.14",),
    "pydantic_ai_app.py": ("pydantic-ai-slim[openai]>=2",),
    "openai_parse_app.py": ("openai>=3",),
}
#: Page of docs/ -> the program whose environment its own programs need.
PAGES = {"langchain": "langchain_app.py", "litellm": "litellm_app.py", "pydantic-ai": "pydantic_ai_app.py"}
#: As FRAMEWORKS, for programs that ask a scripted stack, too.
AGENTS = {
    "agents_app.py": ("openai-agents>=0.24",),
    "codex_app.py": ("openai>=3",),
    "anthropic_app.py": ("anthropic>=2",),
}
#: The same for programs that speak Ollama's API, whose real stack has a model for embeddings, too.
OLLAMA = {
    "ollama_app.py": ("ollama>=0.6",),
    "langchain_ollama_app.py": ("langchain-ollama>=1",),
    "llm_ollama_app.py": ("llm>=0.36", "llm-ollama>=0.19"),
}
#: Settings of the Codex CLI. By default it brings the tool `web_search` and a `namespace` of tools, which the gateway refuses.
CODEX = """
model = "{model}"
model_provider = "triptych"
web_search = "disabled"
agents.enabled = false
analytics.enabled = false
check_for_update_on_startup = false
[model_providers.triptych]
name = "Triptych"
base_url = "{url}/v1"
wire_api = "responses"
supports_websockets = {websockets}
request_max_retries = 0
stream_max_retries = 0
"""


@pytest.fixture(scope="module")
def served() -> Iterator[Stack]:
    with running_stack() as stack:
        yield stack


@pytest.fixture(scope="module")
def scripted() -> Iterator[str]:
    """The URL of a gateway with a mock behind it."""
    with scripted_gateway(DEFAULT_MODEL) as url:
        yield url


@pytest.fixture(scope="module")
def two_models() -> Iterator[Stack]:
    with running_stack(DEFAULT_MODEL, "embed=all-minilm-l6-v2") as stack:
        yield stack


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that keeps files."""
    with running_stack("--gateway.files-dir", str(tmp_path_factory.mktemp("files"))) as stack:
        yield stack


@pytest.fixture
def cache(pytestconfig: pytest.Config) -> Path:
    """Where downloads are kept from run to run."""
    return pytestconfig.cache.mkdir("ecosystem")  # type: ignore[union-attr]


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    env = os.environ | environment
    result = subprocess.run(
        [str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=cwd, env=env
    )
    assert result.returncode == 0, f"{command}:\n{result.stdout[-6000:]}\n{result.stderr[-6000:]}"
    return result.stdout


@pytest.mark.parametrize("program", FRAMEWORKS)
def test_framework(program: str, served: Stack, cache: Path) -> None:
    python = python_environment(cache / program.removesuffix(".py"), *FRAMEWORKS[program])
    assert run(python, PROGRAMS / program, f"{served.url}/v1", DEFAULT_MODEL).endswith("ok\n")


@pytest.mark.parametrize("page", PAGES)
def test_programs_of_a_page(page: str, two_models: Stack, cache: Path) -> None:
    program = PAGES[page]
    python = python_environment(cache / program.removesuffix(".py"), *FRAMEWORKS[program])
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for shown in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        printed = run(python, "-c", shown.replace("http://127.0.0.1:8000", two_models.url), NO_PROXY="127.0.0.1")
        (right,) = re.findall(r"^print.*  # (.+)$", shown, re.MULTILINE) or ["Paris"]
        assert right in printed.splitlines()[0]


@pytest.mark.parametrize("program", AGENTS)
def test_agent(program: str, scripted: str, served: Stack, cache: Path) -> None:
    python = python_environment(cache / program.removesuffix(".py"), *AGENTS[program])
    assert run(python, PROGRAMS / program, scripted, served.url, DEFAULT_MODEL).endswith("ok\n")


@pytest.mark.parametrize("program", OLLAMA)
def test_client_of_ollama(program: str, scripted: str, two_models: Stack, cache: Path) -> None:
    python = python_environment(cache / program.removesuffix(".py"), *OLLAMA[program])
    assert run(python, PROGRAMS / program, scripted, two_models.url, DEFAULT_MODEL).endswith("ok\n")


def test_ollama_of_npm(scripted: str, two_models: Stack, cache: Path, tmp_path: Path) -> None:
    tools = Tools(cache)
    modules = npm_packages(cache / "ollama", tools.program("npm"), "ollama@>=0.6")
    (tmp_path / "node_modules").symlink_to(modules)
    shutil.copy(PROGRAMS / "ollama_npm.mjs", tmp_path)
    asked = (scripted, two_models.url, DEFAULT_MODEL, PICTURE)
    assert run(tools.program("node"), "ollama_npm.mjs", *asked, cwd=tmp_path).endswith("ok\n")


@pytest.mark.parametrize("websockets", ["false", "true"])
def test_codex_cli(websockets: str, scripted: str, cache: Path, tmp_path: Path) -> None:
    tools = Tools(cache)
    modules = npm_packages(cache / "codex", tools.program("npm"), "@openai/codex@>=0.169")
    (tmp_path / "config.toml").write_text(CODEX.format(model=DEFAULT_MODEL, url=scripted, websockets=websockets))
    call = {"id": "call_1", "name": "exec_command", "arguments": json.dumps({"cmd": "echo Triptych"})}
    asked = json.dumps({"mock": {"reasoning": "I must look.", "text": "I look.", "toolCalls": [call]}})
    options = ["--skip-git-repo-check", "--json"]

    def turn(*arguments: str) -> list[tuple[str, str]]:
        """The items that the CLI tells of, without its own warnings: type and text."""
        home = {"HOME": str(tmp_path), "CODEX_HOME": str(tmp_path)}
        told = run(tools.program("node"), modules / ".bin" / "codex", "exec", *arguments, cwd=tmp_path, **home)
        items = [event["item"] for event in map(json.loads, told.splitlines()) if event["type"] == "item.completed"]
        return [(item["type"], item.get("aggregated_output") or item["text"]) for item in items if item["type"] != "error"]

    *items, last = turn("--sandbox", "danger-full-access", *options, asked)
    assert items == [("reasoning", "I must look."), ("agent_message", "I look."), ("command_execution", "Triptych\n")]
    assert "Triptych" in last[1], "the result of the command was the model's next question"
    assert turn("resume", "--last", *options, "Thanks.") == [("agent_message", "Thanks.")]
    # The connection of the first turn has ended by now, and is counted.
    metrics = httpx.get(f"{scripted}/metrics", trust_env=False).text
    assert ('requests_total{route="websocket",status="101"}' in metrics) == (websockets == "true")


def test_openai_of_npm(served: Stack, cache: Path, tmp_path: Path) -> None:
    tools = Tools(cache)
    modules = npm_packages(cache / "npm", tools.program("npm"), "openai@>=6")
    (tmp_path / "node_modules").symlink_to(modules)
    shutil.copy(PROGRAMS / "openai_npm.mjs", tmp_path)
    assert run(tools.program("node"), "openai_npm.mjs", f"{served.url}/v1", DEFAULT_MODEL, cwd=tmp_path).endswith("ok\n")


def test_batches_with_openai(keeping: Stack, cache: Path) -> None:
    python = python_environment(cache / "openai_parse_app", *FRAMEWORKS["openai_parse_app.py"])
    program = PROGRAMS / "openai_batches_app.py"
    assert run(python, program, f"{keeping.url}/v1", DEFAULT_MODEL, PICTURE).endswith("ok\n")


def test_batches_with_openai_of_npm(keeping: Stack, cache: Path, tmp_path: Path) -> None:
    tools = Tools(cache)
    modules = npm_packages(cache / "npm", tools.program("npm"), "openai@>=6")
    (tmp_path / "node_modules").symlink_to(modules)
    shutil.copy(PROGRAMS / "openai_batches.mjs", tmp_path)
    assert run(tools.program("node"), "openai_batches.mjs", f"{keeping.url}/v1", DEFAULT_MODEL, cwd=tmp_path).endswith("ok\n")


def test_schemathesis(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = python_environment(cache / "schemathesis", "schemathesis>=4.20")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    options = ["--checks", checks, "--max-examples", "20", "--seed", "1", "--request-timeout", "120"]
    shutil.copy(PROGRAMS / "schemathesis_hooks.py", tmp_path)
    monkeypatch.setenv("SCHEMATHESIS_HOOKS", "schemathesis_hooks")
    monkeypatch.setenv("TRIPTYCH_MODEL", DEFAULT_MODEL)
    # A short context, because some requests have no limit of their own.
    with running_stack("--max-model-len", "128", "--gateway.files-dir", str(tmp_path / "files")) as stack:
        run(python.with_name("schemathesis"), "run", f"{stack.url}/openapi.json", *options, cwd=tmp_path)
        requests = stack.http.get("/metrics").text
    for path in ("v1/chat/completions", "v1/completions", "v1/responses", "v1/messages", "api/chat", "api/generate"):
        assert f'requests_total{{route="/{path}",status="200"}}' in requests, f"no request to {path} was answered:\n{requests}"
