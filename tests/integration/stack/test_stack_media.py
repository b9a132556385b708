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
from support.builders.media import a_picture, an_image_file
from support.stack import Stack, running_stack
from triptych.v1 import common_pb2, generation_pb2, generation_pb2_grpc, preprocess_pb2, preprocess_pb2_grpc

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


def test_a_completion_of_the_rendered_prompt_is_the_chat(stack: Stack) -> None:
    generation: Any = generation_pb2_grpc.GenerationServiceStub(stack.channel("frontend"))
    preprocess: Any = preprocess_pb2_grpc.PreprocessServiceStub(stack.channel("frontend"))
    files = [an_image_file("PNG", a_picture(90, 50)), an_image_file("PNG", a_picture(40, 70, seed=1))]
    items = [common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, data=data) for data in files]
    parts = [*({"media": item} for item in items), {"text": "What do these show?"}]
    message = generation_pb2.ChatMessage(role="user", content=[generation_pb2.ContentPart(**part) for part in parts])
    chat = generation_pb2.ChatRequest(messages=[message])
    prompt = preprocess.Preprocess(preprocess_pb2.PreprocessRequest(chat=chat), timeout=60).prompt
    given = preprocess.Tokenize(preprocess_pb2.TokenizeRequest(text=prompt, add_special_tokens=False), timeout=60).token_ids
    sampling = common_pb2.SamplingParams(temperature=0, max_tokens=8, logprobs=3, prompt_logprobs=2, ignore_eos=True)

    def options(salt: str) -> generation_pb2.GenerationOptions:
        # Calls with different salts share no embeddings and no prefixes, so each is computed.
        return generation_pb2.GenerationOptions(sampling=sampling, return_token_ids=True, cache_salt=salt)

    by_chat = generation.Chat(generation_pb2.ChatRequest(messages=[message], options=options("chat")), timeout=60)
    complete = generation_pb2.CompleteRequest(media=items, add_special_tokens=False)
    complete.text = prompt
    complete.options.CopyFrom(options("text"))
    by_text = generation.Complete(complete, timeout=60)
    complete.token_ids.ids.extend(given)
    complete.options.CopyFrom(options("ids"))
    by_ids = generation.Complete(complete, timeout=60)
    complete.media.reverse()
    complete.options.CopyFrom(options("reversed"))
    by_reversed = generation.Complete(complete, timeout=60)

    assert len(given) < by_chat.usage.prompt_tokens
    for other in (by_text, by_ids):
        assert_same(other.choices[0], by_chat.choices[0])
        assert other.usage == by_chat.usage
        assert [report.num_tokens for report in other.media] == [report.num_tokens for report in by_chat.media]
        assert all(report.source == common_pb2.EMBEDDING_SOURCE_ENCODER for report in other.media)
    with pytest.raises(AssertionError):  # the numbers depend on the pictures and their places
        assert_same(by_reversed.choices[0], by_chat.choices[0])


def assert_same(choice: generation_pb2.Choice, expected: generation_pb2.Choice) -> None:
    assert (choice.text, [*choice.token_ids]) == (expected.text, [*expected.token_ids])
    for name in ("logprobs", "prompt_logprobs"):
        found, wanted = getattr(choice, name), getattr(expected, name)
        assert [entry.token_id for entry in found] == [entry.token_id for entry in wanted]
        assert [entry.logprob for entry in found] == pytest.approx([entry.logprob for entry in wanted], abs=1e-5)


@pytest.mark.long
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
