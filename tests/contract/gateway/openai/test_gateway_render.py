"""/v1/chat/completions/render and /tokenize: what the model would get, without generating."""

from __future__ import annotations

from typing import Any

import pytest
from support.fakes.frontend import MODEL, FakeFrontend
from support.fakes.gateway import CHAT, gateway_client

PATH = "/v1/chat/completions/render"
TOOLS = [{"type": "function", "function": {"name": "find"}}]


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


async def test_text() -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        response = await client.post(PATH, json=CHAT | {"tools": TOOLS, "tool_choice": "none", "temperature": 0, "stream": True})
    assert response.json() == {
        "model": MODEL.name,
        "prompt": "Hi",
        "token_ids": [72, 105],
        "count": 2,
        "max_model_len": 2048,
        "features": None,
    }
    assert [tool.name for tool in frontend.preprocessed[0].chat.tools] == ["find"]
    assert frontend.requests == []


async def test_media_by_modality() -> None:
    sound = {"type": "audio_url", "audio_url": {"url": "https://x/s"}}
    content = [image("https://x/a"), sound, {"type": "text", "text": "?"}, image("https://x/b")]
    async with gateway_client() as client:
        response = await client.post(PATH, json=CHAT | {"messages": [{"role": "user", "content": content}]})
    assert response.json()["features"] == {
        "mm_hashes": {"image": [b"https://x/a".hex(), b"https://x/b".hex()], "audio": [b"https://x/s".hex()]},
        "mm_placeholders": {
            "image": [
                {"offset": 0, "length": 2, "item": 0},
                {"offset": 5, "length": 2, "item": 0},
                {"offset": 20, "length": 2, "item": 1},
                {"offset": 25, "length": 2, "item": 1},
            ],
            "audio": [{"offset": 10, "length": 2, "item": 0}, {"offset": 15, "length": 2, "item": 0}],
        },
    }


async def test_inline_files_travel_in_the_request() -> None:
    frontend = FakeFrontend()
    content = [image("data:image/png;base64,AAEC")]
    async with gateway_client(frontend) as client:
        response = await client.post(PATH, json=CHAT | {"messages": [{"role": "user", "content": content}]})
    assert response.status_code == 200
    assert frontend.preprocessed[0].chat.messages[0].content[0].media.data == b"\0\1\2"


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"truncate_prompt_tokens": 5}, 400, "truncate_prompt_tokens"),
        ({"tools": [{}]}, 400, "tools[0].type"),
        ({"prompt": "x"}, 400, "prompt"),
    ],
    ids=str,
)
async def test_refused(fields: dict[str, Any], status: int, param: str) -> None:
    async with gateway_client() as client:
        response = await client.post(PATH, json=CHAT | fields)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


async def test_tokenize_takes_tools_with_messages() -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        response = await client.post("/tokenize", json={"messages": CHAT["messages"], "tools": TOOLS})
        refused = await client.post("/tokenize", json={"prompt": "x", "tools": TOOLS})
    assert response.json()["tokens"] == [72, 105]
    assert [tool.name for tool in frontend.preprocessed[0].chat.tools] == ["find"]
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
