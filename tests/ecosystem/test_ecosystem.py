"""Frameworks and clients that people use, unmodified, against a real stack. Each program raises, or prints "ok" at its end.

They are downloaded: `make test-ecosystem`. A test is skipped where its packages cannot be had, and says which.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.codegen import Tools
from support.downloads import npm_packages, python_environment
from support.stack import Stack, running_stack
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.ecosystem, pytest.mark.timeout(1200)]
PROGRAMS = Path(__file__).with_name("programs")
#: Program -> its packages. Each has an environment of its own, because they disagree about the version of `openai`.
FRAMEWORKS = {
    "langchain_app.py": ("langchain-openai>=1",),
    "litellm_app.py": ("litellm>=1.80", "mcp"),
    "instructor_app.py": ("instructor>=1.14",),
    "pydantic_ai_app.py": ("pydantic-ai-slim[openai]>=2",),
}


@pytest.fixture(scope="module")
def served() -> Iterator[Stack]:
    with running_stack() as stack:
        yield stack


@pytest.fixture
def cache(pytestconfig: pytest.Config) -> Path:
    """Where downloads are kept from run to run."""
    return pytestconfig.cache.mkdir("ecosystem")  # type: ignore[union-attr]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, cwd=cwd)
    assert result.returncode == 0, f"{command}:\n{result.stdout[-6000:]}\n{result.stderr[-6000:]}"
    return result.stdout


@pytest.mark.parametrize("program", FRAMEWORKS)
def test_framework(program: str, served: Stack, cache: Path) -> None:
    python = python_environment(cache / program.removesuffix(".py"), *FRAMEWORKS[program])
    assert run(python, PROGRAMS / program, f"{served.url}/v1", DEFAULT_MODEL).endswith("ok\n")


def test_openai_of_npm(served: Stack, cache: Path, tmp_path: Path) -> None:
    tools = Tools(cache)
    modules = npm_packages(cache / "npm", tools.program("npm"), "openai@>=6")
    (tmp_path / "node_modules").symlink_to(modules)
    shutil.copy(PROGRAMS / "openai_npm.mjs", tmp_path)
    assert run(tools.program("node"), "openai_npm.mjs", f"{served.url}/v1", DEFAULT_MODEL, cwd=tmp_path).endswith("ok\n")


def test_schemathesis(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = python_environment(cache / "schemathesis", "schemathesis>=4.20")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    options = ["--checks", checks, "--max-examples", "20", "--seed", "1", "--request-timeout", "120"]
    shutil.copy(PROGRAMS / "schemathesis_hooks.py", tmp_path)
    monkeypatch.setenv("SCHEMATHESIS_HOOKS", "schemathesis_hooks")
    monkeypatch.setenv("TRIPTYCH_MODEL", DEFAULT_MODEL)
    # A short context, because some requests have no limit of their own.
    with running_stack("--max-model-len", "128") as stack:
        run(python.with_name("schemathesis"), "run", f"{stack.url}/openapi.json", *options, cwd=tmp_path)
        requests = stack.http.get("/metrics").text
    for path in ("chat/completions", "completions", "responses", "messages"):
        assert f'requests_total{{route="/v1/{path}",status="200"}}' in requests, f"no request to {path} was answered:\n{requests}"
