"""POST /v1/responses/compact, and going on from what it returns."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from support.drivers.responses import LENGTH, answers, calls, sdk
from support.fakes.frontend import MODEL, Delta, FakeFrontend, says


def texts(frontend: FakeFrontend) -> list[tuple[str, str]]:
    return [(message.role, "".join(part.text for part in message.content)) for message in frontend.request.messages]


async def test_a_conversation_becomes_an_item_and_goes_on() -> None:
    frontend = FakeFrontend()
    async with sdk(frontend) as client:
        first = await client.responses.create(model=MODEL.name, input="I am Alice.")
        frontend.script = answers(Delta(reasoning="What matters?"), Delta(text="\nThe user is "), Delta(text="Alice."))
        short = await client.responses.compact(model=MODEL.name, previous_response_id=first.id, instructions="Be brief.")
        assert [role for role, _ in texts(frontend)] == ["system", "user", "assistant", "user"]
        assert "Summarize" in texts(frontend)[-1][1]
        assert short.object == "response.compaction"
        assert [item.type for item in short.output] == ["compaction"]
        assert short.usage.total_tokens == 10
        assert "Alice" not in short.output[0].encrypted_content  # type: ignore[union-attr]
        frontend.script = says("Alice.")
        window: Any = [*short.output, {"role": "user", "content": "Who am I?"}]
        second = await client.responses.create(model=MODEL.name, input=window, instructions="Be brief.")
        third = await client.responses.create(model=MODEL.name, input="Sure?", previous_response_id=second.id)
    assert third.output_text == "Alice."
    summary = "The conversation before this point, in short:\nThe user is Alice."
    assert texts(frontend) == [("system", summary), ("user", "Who am I?"), ("assistant", "Alice."), ("user", "Sure?")]


async def test_the_task_joins_the_last_message_of_the_user() -> None:
    frontend = FakeFrontend()
    async with sdk(frontend) as client:
        await client.responses.compact(model=MODEL.name, input="One")
        [(role, text)] = texts(frontend)
        assert role == "user"
        assert text.startswith("OneSummarize")
        output: Any = [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
        ]
        await client.responses.compact(model=MODEL.name, input=output)
    assert [role for role, _ in texts(frontend)] == ["assistant", "tool", "user"]


async def test_what_cannot_be_compacted() -> None:
    frontend = FakeFrontend()
    async with sdk(frontend) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.responses.compact(model=MODEL.name, previous_response_id="resp_x")
        assert missing.value.code == "previous_response_not_found"
        with pytest.raises(openai.BadRequestError) as empty:
            await client.responses.compact(model=MODEL.name)
        assert empty.value.param == "input"
        foreign: Any = [{"type": "compaction", "encrypted_content": "gAAAA"}]
        with pytest.raises(openai.BadRequestError) as unread:
            await client.responses.create(model=MODEL.name, input=foreign)
        assert unread.value.param == "input[0].encrypted_content"


async def test_a_summary_has_a_limit_and_may_be_cut() -> None:
    frontend = FakeFrontend()
    frontend.script = answers(Delta(text="cut", finish_reason=LENGTH))
    async with sdk(frontend) as client:
        short = await client.responses.compact(model=MODEL.name, input="One")
        assert frontend.request.options.sampling.max_tokens == 1024
        window: Any = [*short.output, {"role": "user", "content": "Go on."}]
        await client.responses.create(model=MODEL.name, input=window)
    assert texts(frontend)[0][1].endswith("\ncut")


async def test_calls_are_no_summary() -> None:
    frontend = FakeFrontend()
    frontend.script = answers(Delta(text="Sum."), calls("f", "{}"))
    async with sdk(frontend) as client:
        short = await client.responses.compact(model=MODEL.name, input="One")
    assert len(short.output) == 1
