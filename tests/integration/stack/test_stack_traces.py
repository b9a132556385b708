"""`triptych serve` with a collector: one tree per request from four processes, the last spans included."""

from __future__ import annotations

import asyncio
import base64

import pytest
from support.builders.media_files import image
from support.fakes.collector import collecting, tree
from support.stack import running_stack
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.model, pytest.mark.long]


async def test_four_processes_trace_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"data:image/png;base64,{base64.b64encode(image()).decode()}"
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    body = {"model": DEFAULT_MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 4, "ignore_eos": True}

    def ask(endpoint: str) -> None:
        with running_stack("--otlp-traces-endpoint", endpoint) as stack:
            answer = stack.http.post("/v1/chat/completions", json=body, headers={"x-request-id": "r-1"})
            answer.raise_for_status()

    async with collecting(monkeypatch) as collector:
        await asyncio.to_thread(ask, collector.endpoint)
        # The services have ended, so no more can come.
        spans = await collector.until_tree("r-1", tree(collector.trace("r-1")))
    assert {name.partition(":")[0] for name in spans} == {"gateway", "frontend", "encoder", "engine"}
    assert {
        "gateway: POST /v1/chat/completions",
        f"frontend: chat {DEFAULT_MODEL}",
        "encoder: encode image",
        "engine: sequence",
        "engine: decode",
        "engine: fetch image",
    } <= set(spans)
