"""`triptych serve --task embed` on a tiny multimodal checkpoint: a picture through gateway, frontend, encoder and engine."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from support.builders.media import a_picture, an_image_file
from support.builders.media_files import checkpoint
from support.stack import running_stack

pytestmark = [pytest.mark.model, pytest.mark.timeout(300), pytest.mark.long]


def _body(model: str, *pictures: bytes) -> dict[str, Any]:
    urls = [f"data:image/png;base64,{base64.b64encode(picture).decode()}" for picture in pictures]
    parts = [{"type": "text", "text": "What is this?"}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]
    return {"model": model, "messages": [{"role": "user", "content": parts}]}


def test_a_picture_is_embedded() -> None:
    limits = ["--engine.kv-cache-memory", "16M", "--engine.dtype", "float32", "--encoder.dtype", "float32"]
    one, other = (an_image_file("PNG", a_picture(90, 50, seed=seed)) for seed in (0, 1))
    with running_stack(str(checkpoint("llava_siglip")), "--task", "embed", *limits) as stack:
        model = stack.http.get("/v1/models").json()["data"][0]["id"]
        answers = [
            stack.http.post("/v1/embeddings", json=_body(model, *pictures)).raise_for_status().json()
            for pictures in ((one,), (one,), (other,), ())
        ]
        per_token = {**_body(model, one), "task": "token_embed", "normalize": True}
        pooled = stack.http.post("/pooling", json=per_token).raise_for_status().json()
        stack.wait_until_empty()
    first, again, another, without = (np.array(answer["data"][0]["embedding"]) for answer in answers)
    np.testing.assert_allclose([np.linalg.norm(vector) for vector in (first, another, without)], 1, atol=1e-5)
    np.testing.assert_allclose(first, again, atol=1e-5)
    assert max(first @ another, first @ without, another @ without) < 0.999, "the picture matters"
    num_tokens = answers[0]["usage"]["prompt_tokens"]
    assert num_tokens - answers[3]["usage"]["prompt_tokens"] == 17, "of the picture: 16, and a line break"
    of_tokens = np.array(pooled["data"][0]["data"])
    assert of_tokens.shape == (num_tokens, len(first))
    np.testing.assert_allclose(of_tokens[-1], first, atol=1e-5)
