"""`LLM.generate` and `LLM.chat` against the mock over real gRPC: order, errors, retries, cancellation."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest
from support.mock import Mock, mock_server, script
from support.waiting import until
from triptych import LLM, GenerationError, SamplingParams
from triptych.errors import (
    ContextLengthError,
    InvalidRequestError,
    RequestAbortedError,
    ServiceUnavailableError,
    UnauthenticatedError,
)


@pytest.fixture
async def mock() -> AsyncIterator[Mock]:
    async with mock_server() as running:
        yield running


async def in_thread(address: str, use: Callable[[LLM], Any], **arguments: Any) -> Any:
    """What a function returns that uses an LLM, which blocks."""

    def run() -> Any:
        with LLM(address=address, **arguments) as llm:
            return use(llm)

    return await asyncio.to_thread(run)


async def test_results_are_in_the_order_of_the_prompts(mock: Mock) -> None:
    prompts = [script(numTokens=3, firstTokenS=0.05 * (number % 3), text=f"answer {number}") for number in range(20)]
    outputs = await in_thread(mock.address, lambda llm: llm.generate(prompts, use_tqdm=False))
    assert [output.outputs[0].text for output in outputs] == [f"answer {number}" for number in range(20)]
    assert [output.prompt for output in outputs] == prompts


async def test_requests_are_cancelled_when_the_source_of_prompts_breaks(mock: Mock) -> None:
    def prompts() -> Iterator[str]:
        for _ in range(20):
            yield script(fault={"stall": True})
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        await in_thread(mock.address, lambda llm: llm.generate(prompts(), use_tqdm=False))
    await until(lambda: mock.server.num_live_requests == 0)


async def test_sampling_params_of_each_prompt(mock: Mock) -> None:
    prompts, params = [script(numTokens=9)] * 3, [SamplingParams(max_tokens=number) for number in (1, 2, 3)]
    outputs = await in_thread(mock.address, lambda llm: llm.generate(prompts, params, use_tqdm=False))
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3]
    assert [output.outputs[0].finish_reason for output in outputs] == ["length"] * 3
    with pytest.raises(ValueError, match="2 sampling_params for 3 prompts"):
        await in_thread(mock.address, lambda llm: llm.generate(prompts, params[:2], use_tqdm=False))
    with pytest.raises(ValueError, match="2 sampling_params for more prompts"):
        await in_thread(mock.address, lambda llm: llm.generate(iter(prompts), params[:2], use_tqdm=False))
    with pytest.raises(ValueError, match="3 sampling_params for 2 prompts"):
        await in_thread(mock.address, lambda llm: llm.generate(iter(prompts[:2]), params, use_tqdm=False))


async def test_a_bad_prompt_raises_with_its_index_and_cancels_the_others(mock: Mock) -> None:
    bad = script(fault={"error": {"code": 3, "reason": "CONTEXT_LENGTH_EXCEEDED", "message": "too long"}})
    prompts = [*[script(fault={"stall": True})] * 5, bad]
    with pytest.raises(GenerationError, match=r"prompts\[5\]: too long") as raised:
        await in_thread(mock.address, lambda llm: llm.generate(prompts, use_tqdm=False))
    assert raised.value.index == 5
    assert isinstance(raised.value.__cause__, ContextLengthError)
    await until(lambda: mock.server.num_live_requests == 0)


async def test_errors_stand_in_the_list_if_wanted(mock: Mock) -> None:
    prompts = ["good", {"text": "no such key"}, script(fault={"error": {"code": 3}}), [0], {"prompt_token_ids": [-1]}, 7]
    outputs = await in_thread(mock.address, lambda llm: llm.generate(prompts, use_tqdm=False, raise_on_error=False))
    assert [getattr(output, "index", None) for output in outputs] == [None, 1, 2, None, 4, 5]
    assert outputs[0].outputs[0].text == "good"
    assert all(isinstance(outputs[index].__cause__, InvalidRequestError) for index in (1, 2, 4, 5))


async def test_a_full_queue_and_a_lost_engine_are_tried_again(mock: Mock) -> None:
    full = {"numCalls": 4, "error": {"code": 8, "reason": "QUEUE_FULL", "retryAfterS": 0.01}}
    lost = {"numCalls": 4, "error": {"code": 14, "reason": "SERVICE_UNAVAILABLE"}}
    bare = [{"numCalls": num_calls, "bareCode": code} for num_calls, code in ((3, 14), (1, 1))]
    prompts = [script(text=text, fault=fault) for text, fault in zip("abcd", [full, lost, *bare], strict=True)]
    outputs = await in_thread(mock.address, lambda llm: llm.generate(prompts, use_tqdm=False))
    assert [output.outputs[0].text for output in outputs] == list("abcd")


async def test_services_that_stay_away_are_an_error(mock: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych.offline.calls.runtime._MAX_PAUSE_S", 0.001)
    with pytest.raises(GenerationError) as raised:
        await in_thread(mock.address, lambda llm: llm.generate(script(fault={"bareCode": 14}), use_tqdm=False))
    assert isinstance(raised.value.__cause__, ServiceUnavailableError)


async def test_close_ends_calls_of_other_threads(mock: Mock) -> None:
    llm = await asyncio.to_thread(LLM, address=mock.address)
    call = asyncio.create_task(asyncio.to_thread(llm.generate, script(fault={"stall": True}), use_tqdm=False))
    await until(lambda: mock.server.num_live_requests > 0)
    await asyncio.to_thread(llm.close)
    llm.close()
    with pytest.raises(RequestAbortedError, match="was closed"):
        await call
    with pytest.raises(RequestAbortedError, match="was closed"):
        llm.generate("more", use_tqdm=False)
    await until(lambda: mock.server.num_live_requests == 0)


async def test_conversations(mock: Mock) -> None:
    one = [{"role": "user", "content": "hello"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    (output,) = await in_thread(mock.address, lambda llm: llm.chat(one, use_tqdm=False, tools=tools))
    assert output.prompt == "user: hello\n"
    outputs = await in_thread(
        mock.address, lambda llm: llm.chat([one, one], [SamplingParams(n=2), SamplingParams()], use_tqdm=False)
    )
    assert [len(output.outputs) for output in outputs] == [2, 1]
    (output,) = await in_thread(mock.address, lambda llm: llm.chat("hello", use_tqdm=False))
    assert output.prompt == "user: hello\n"


async def test_pictures_go_along(mock: Mock) -> None:
    messages = [{"role": "user", "content": [{"type": "image", "image": b"a file"}, {"type": "text", "text": "which colour?"}]}]
    (output,) = await in_thread(mock.address, lambda llm: llm.chat(messages, use_tqdm=False))
    assert output.outputs[0].text == "which colour?"
    assert len(output.media) == 1
    prompt = {"prompt": "<media> what is this", "multi_modal_data": {"image": [b"a file"]}}
    (output,) = await in_thread(mock.address, lambda llm: llm.generate(prompt, use_tqdm=False))
    assert len(output.media) == 1


async def test_the_bar_is_told_of_all_prompts_and_tokens(mock: Mock) -> None:
    made = []

    class Bar:
        def __init__(self, **options: Any) -> None:
            self.options, self.num_done, self.postfix, self.is_closed = options, 0, "", False
            made.append(self)

        def set_postfix_str(self, text: str, refresh: bool) -> None:
            self.postfix = text

        def update(self, count: int) -> None:
            self.num_done += count

        def close(self) -> None:
            self.is_closed = True

    await in_thread(mock.address, lambda llm: llm.generate(["a", "b"], use_tqdm=Bar))
    await in_thread(mock.address, lambda llm: llm.generate((text for text in ("a", "b")), use_tqdm=Bar))
    assert [bar.options["total"] for bar in made] == [2, None]
    assert all(bar.num_done == 2 and bar.is_closed and "output: " in bar.postfix for bar in made)


async def test_a_model_is_chosen_by_name(mock: Mock) -> None:
    served = mock.server.model_info().name
    assert await in_thread(mock.address, lambda llm: llm.generate("x", use_tqdm=False)[0].outputs[0].text, model=served) == "x"
    with pytest.raises(InvalidRequestError, match=f"'other' is not served; served are: {served}"):
        await in_thread(mock.address, lambda llm: None, model="other")


async def test_an_api_key() -> None:
    async with mock_server(api_key="secret") as mock:
        outputs = await in_thread(mock.address, lambda llm: llm.generate("x", use_tqdm=False), api_key="secret")
        assert outputs[0].outputs[0].text == "x"
        with pytest.raises(UnauthenticatedError):
            await in_thread(mock.address, lambda llm: None, api_key="wrong")


async def test_a_request_that_is_too_large_to_send_is_an_error(mock: Mock) -> None:
    """The transport's RESOURCE_EXHAUSTED is no full queue, for which a call waits as long as it takes."""
    large = {"prompt": "<media>", "multi_modal_data": {"image": bytes(65 << 20)}}
    async with asyncio.timeout(30):
        with pytest.raises(GenerationError, match=r"prompts\[1\]: .*larger than max"):
            await in_thread(mock.address, lambda llm: llm.generate(["x", large], use_tqdm=False))


async def test_the_garbage_collector_on_the_loop_itself_closes(mock: Mock) -> None:
    """An object in a cycle is collected in whatever thread allocates."""

    def run() -> threading.Thread:
        llm: Any = LLM(address=mock.address)
        loop = llm._runtime._loop
        llm.itself = llm
        gc.disable()
        try:
            del llm
            loop.call(gc.collect)
            deadline_s = time.monotonic() + 10
            while not loop._is_closed and time.monotonic() < deadline_s:
                time.sleep(0.01)
        finally:
            gc.enable()
        loop._thread.join(10)
        return cast(threading.Thread, loop._thread)

    assert not (await asyncio.to_thread(run)).is_alive()


async def test_a_fork_is_told_that_it_cannot_use_the_object(mock: Mock) -> None:
    program = (
        "import os, sys\n"
        "from triptych import LLM\n"
        "llm = LLM(address=sys.argv[1])\n"
        "if os.fork() == 0:\n"
        "    llm.generate('x', use_tqdm=False)\n"
        "os.wait()\n"
        "print(llm.generate('parent', use_tqdm=False)[0].outputs[0].text)\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, mock.address), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    assert out == b"parent\n"
    assert b"RuntimeError: requests cannot be sent: this process is a fork" in err
