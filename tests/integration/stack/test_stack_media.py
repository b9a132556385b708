"""`triptych serve` on a tiny multimodal checkpoint: pictures through all services, and an encoder that is killed."""

from __future__ import annotations

import base64
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import support.builders.media_files as media
from support.stack import Stack, running_stack

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]
#: Longest wait for an encoder that is started again, in seconds.
_RESTART_S = 60


@pytest.fixture(scope="module")
def media_stack() -> Iterator[Stack]:
    limits = ["--engine.kv-cache-memory", "16M", "--engine.dtype", "float32", "--encoder.dtype", "float32"]
    with running_stack(str(media.checkpoint("llava_siglip")), *limits) as stack:
        yield stack


@pytest.fixture
def stack(media_stack: Stack) -> Iterator[Stack]:
    """Whatever the test did, nothing of it may be left when it ends."""
    yield media_stack
    media_stack.wait_until_empty()


def picture(width: int, height: int) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(media.image(width, height)).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def post(stack: Stack, *parts: dict[str, Any] | str) -> httpx.Response:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    model = stack.http.get("/v1/models").json()["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0}
    return stack.http.post("/v1/chat/completions", json=body)


def answer(stack: Stack, *parts: dict[str, Any] | str) -> dict[str, Any]:
    response = post(stack, *parts)
    assert response.status_code == 200, response.text
    whole: dict[str, Any] = response.json()
    return whole


def test_pictures_are_encoded_once_and_their_tokens_computed_once(stack: Stack) -> None:
    pictures = [picture(30 + number, 20) for number in range(4)]
    first = answer(stack, *pictures, "What are these?")
    again = answer(stack, *pictures, "What are these?")
    other = answer(stack, *pictures, "How many are there?")
    assert first["choices"][0]["message"]["content"] == again["choices"][0]["message"]["content"]
    assert [report["encoder_cache"] for report in first["triptych"]["media"]] == ["miss"] * 4
    assert {report["source"] for report in first["triptych"]["media"]} == {"encoder"}
    details = first["usage"]["prompt_tokens_details"]
    assert (details["image_tokens"], details["cached_media_tokens"]) == (64, 0)
    for later in (again, other):
        reports, details = later["triptych"]["media"], later["usage"]["prompt_tokens_details"]
        assert [report["encoder_cache"] for report in reports] == ["hit"] * 4
        # Blocks have 16 tokens, and the last one of a prompt is always computed.
        assert 32 <= details["cached_media_tokens"] <= 64
        assert [report["source"] for report in reports[:2]] == ["prefix_cache"] * 2


def test_a_bad_picture_fails_alone(stack: Stack) -> None:
    response = post(stack, "Look:", {"type": "image_url", "image_url": {"url": "data:image/png;base64,UEsDBA=="}})
    assert response.status_code == 400
    assert "messages[0].content[1]" in response.json()["error"]["message"]
    answer(stack, "Hi")


def test_text_readiness_and_replies_do_not_depend_on_the_encoder(stack: Stack) -> None:
    """It is killed under load: no request is lost."""
    is_flowing = threading.Event()

    def ask(number: int) -> tuple[bool, int]:
        is_text = number % 2 == 1
        parts = ["Hi"] if is_text else [picture(20 + number % 200, 20 + number // 200), "What is this?"]
        if number == 100:
            is_flowing.set()
        return is_text, post(stack, *parts).status_code

    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(ask, number) for number in range(500)]
        is_flowing.wait()
        stack.serving.services()["encoder"].kill()
        stack.serving.wait_for(r"encoder died \(SIGKILL\)")
        assert stack.http.get("/ready").status_code == 200
        answer(stack, "Hi")
        outcomes = Counter(done.result() for done in asked)
    assert outcomes.total() == 500
    assert {status for is_text, status in outcomes if is_text} == {200}
    assert {status for is_text, status in outcomes if not is_text} <= {200, 429, 503}
    assert outcomes[False, 200] >= 40, "those before the kill"
    stack.serving.wait_for(r"encoder is ready", times=2, timeout_s=_RESTART_S)
    (report,) = answer(stack, picture(64, 65), "What is this?")["triptych"]["media"]
    assert report["encoder_cache"] == "miss"
