"""Steps that are shorter than the stream interval share a message; what somebody waits for does not wait."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from support.builders.engine import a_scheduler
from triptych_common.arrivals import Arrivals
from triptych_engine.load import StepProgress, load_of
from triptych_engine.rpc.outbox import Mailbox, Outbox
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import FinishReason, TokenLogprobs

LOAD = load_of(a_scheduler(), StepProgress(), Arrivals())


class Stream:
    """An outbox whose sequences have one stream, and the step loop's side of it."""

    def __init__(self, interval_s: float, *sequence_ids: str) -> None:
        self._outbox = Outbox(asyncio.get_running_loop(), lambda load: None, stream_interval_s=interval_s)
        self._mailbox = Mailbox(self._outbox)
        self._num_steps = 0
        for sequence_id in sequence_ids:
            self._mailbox.expect(sequence_id, [sequence_id])

    def step(self, *outputs: SequenceOutput) -> None:
        self._num_steps += 1
        self._outbox.publish(self._num_steps, outputs, LOAD)

    async def message(self) -> tuple[int, dict[str, list[int]]]:
        """The number of the step, and the new tokens of the sequences."""
        taken = await asyncio.wait_for(self._mailbox.take(), 5)
        assert taken is not None
        step, outputs, _ = taken
        tokens = {route.request_id: output.token_ids for route, output in outputs}
        assert len(tokens) == len(outputs), "a sequence has several outputs in a message"
        return step, tokens

    async def hears_nothing(self) -> None:
        await asyncio.sleep(0.01)
        assert not self._mailbox._pending


def first(name: str, token_id: int) -> SequenceOutput:
    return SequenceOutput(name, [token_id], is_first=True)


def more(name: str, *token_ids: int) -> SequenceOutput:
    return SequenceOutput(name, list(token_ids))


def last(name: str, token_id: int) -> SequenceOutput:
    return SequenceOutput(name, [token_id], finish_reason=FinishReason.LENGTH)


async def test_without_an_interval_each_step_is_a_message() -> None:
    stream = Stream(0.0, "a")
    for step in range(1, 4):
        stream.step(more("a", step))
        assert await stream.message() == (step, {"a": [step]})


async def test_steps_within_the_interval_share_a_message() -> None:
    stream = Stream(60.0, "a", "b")
    stream.step(first("a", 1))
    assert await stream.message() == (1, {"a": [1]})
    stream.step(more("a", 2))
    stream.step(more("a", 3, 4))
    await stream.hears_nothing()
    stream.step(more("a", 5), first("b", 6))
    assert await stream.message() == (4, {"a": [2, 3, 4, 5], "b": [6]}), "a first token waits"
    stream.step(more("a", 7), more("b", 8))
    await stream.hears_nothing()
    stream.step(last("a", 9), more("b", 10))
    assert await stream.message() == (6, {"a": [7, 9], "b": [8, 10]}), "an end waits"
    stream.step()  # it tells the load
    stream.step(last("b", 11))
    assert await stream.message() == (8, {"b": [11]})


async def test_what_is_held_needs_no_further_step() -> None:
    stream = Stream(0.1, "a")
    for step in (1, 3):
        stream.step(first("a", step))
        await stream.message()
        started_s = time.monotonic()
        stream.step(more("a", step + 1))
        assert await stream.message() == (step + 1, {"a": [step + 1]})
        assert 0.1 < time.monotonic() - started_s < 2


async def test_after_the_interval_the_next_step_is_sent() -> None:
    stream = Stream(0.02, "a")
    stream.step(first("a", 1))
    await stream.message()
    await asyncio.sleep(0.1)
    stream.step(more("a", 2))
    started_s = time.monotonic()
    assert await stream.message() == (2, {"a": [2]})
    assert time.monotonic() - started_s < 0.02


@pytest.mark.parametrize("interval_s", [0.0, 0.0005, 0.004])
async def test_nothing_is_lost_between_the_threads(interval_s: float) -> None:
    stream, num_tokens = Stream(interval_s, "a"), 3000

    def steps() -> None:
        stream.step(first("a", 0))
        for token_id in range(1, num_tokens - 1):
            stream.step(more("a", token_id))
            if token_id % 100 == 0:
                time.sleep(0.003)
        stream.step(last("a", num_tokens - 1))

    thread = threading.Thread(target=steps)
    thread.start()
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        tokens += (await stream.message())[1]["a"]
    thread.join()
    assert tokens == list(range(num_tokens))


def test_joined_outputs_say_what_the_first_and_the_last_one_do() -> None:
    begin = SequenceOutput("a", [1], is_first=True, usage=(5, 1, 2), prompt_logprobs=[TokenLogprobs(4, -1.0, 1)])
    begin.logprobs = [TokenLogprobs(1, -1.0, 1)]
    middle, end = more("a", 2), last("a", 3)
    middle.logprobs, end.logprobs = [TokenLogprobs(2, -2.0, 1)], [TokenLogprobs(3, -3.0, 1)]
    middle.follow(begin)
    assert middle.is_first
    assert middle.usage == (5, 1, 2)
    end.usage, end.stop_token_id = (5, 3, 2), 3
    end.follow(middle)
    assert (end.token_ids, end.finish_reason, end.stop_token_id, end.usage) == ([1, 2, 3], FinishReason.LENGTH, 3, (5, 3, 2))
    assert [entry.token_id for entry in end.logprobs] == [1, 2, 3]
    assert len(end.prompt_logprobs) == 1
