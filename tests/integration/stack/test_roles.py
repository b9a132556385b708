"""`triptych serve --engines 2 --prefill-engines 1`: one engine computes long prompts, the other decodes, whatever is lost."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest
from support.stack import Stack, running_stack
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.model, pytest.mark.timeout(300), pytest.mark.long]
_FLAGS = ["--engine.dtype", "float32", "--engine.batch-invariant"]


def body(number: int) -> dict[str, Any]:
    """A prompt of about 1,000 tokens."""
    text = f"Chapter {number}. " + "The keeper climbed the stairs of the lighthouse and lit the lamp. " * 70
    return {"prompt": text, "max_tokens": 40, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """What an engine alone answers."""
    with running_stack(*_FLAGS) as stack:
        return [answer(stack, number)["choices"][0]["text"] for number in range(4)]


@pytest.fixture(scope="module")
def stack(expected: list[str]) -> Iterator[Stack]:
    with running_stack("--engines", "2", "--prefill-engines", "1", *_FLAGS, "--engine.metrics-port", "0") as stack:
        yield stack
        stack.serving.process.send_signal(signal.SIGINT)
        assert stack.serving.process.wait(timeout=60) == 0


def answer(stack: Stack, number: int) -> dict[str, Any]:
    response = stack.http.post("/v1/completions", json={"model": DEFAULT_MODEL, **body(number)}, timeout=200)
    response.raise_for_status()
    return response.json()


def engine_with(stack: Stack, role: str) -> psutil.Process:
    children = psutil.Process(stack.serving.process.pid).children()
    return next(child for child in children if f"--kv-role {role}" in " ".join(child.cmdline()))


def test_prompts_are_computed_by_one_engine_and_decoded_by_the_other(stack: Stack, expected: list[str]) -> None:
    first = answer(stack, 0)
    assert first["choices"][0]["text"] == expected[0]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "another engine's blocks are not cached ones"
    again = answer(stack, 0)
    assert again["choices"][0]["text"] == expected[0]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 900, "it stays where its blocks are"
    assert "a prompt is computed here" not in stack.serving.log


@pytest.mark.parametrize(("role", "num_lost"), [("prefill", 0), ("decode", 1)])
def test_answers_are_the_same_while_an_engine_is_killed(stack: Stack, expected: list[str], role: str, num_lost: int) -> None:
    """For some seconds only the other one is there."""
    stack.serving.wait_for(r"frontend .*engine at \S+ serves", times=2 + num_lost)
    with ThreadPoolExecutor(3) as threads:
        answers = [threads.submit(answer, stack, number) for number in (1, 2, 3)]
        time.sleep(2.0)
        engine_with(stack, role).send_signal(signal.SIGKILL)
        assert [one.result(timeout=200)["choices"][0]["text"] for one in answers] == expected[1:4]
    stack.serving.wait_until_ready(stack.url)


def test_nothing_stays_held(stack: Stack) -> None:
    """Both engines have all their blocks."""
    stack.serving.wait_for(r"frontend .*engine at \S+ serves", times=4)
    urls = [url for url in re.findall(r"engine-\d .*metrics at (http://\S+)", stack.serving.log) if is_open(url)]
    assert len(urls) == 2
    for url in urls:
        assert "triptych_engine_kv_cache_usage_ratio 0.0" in httpx.get(url, trust_env=False).text


def is_open(url: str) -> bool:
    """Engines that were killed had other ports."""
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.ConnectError:
        return False
