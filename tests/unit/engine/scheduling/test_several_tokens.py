"""Steps that bring several tokens per request: the same text, in fewer steps, with nothing kept of what was cut or wrong."""

from __future__ import annotations

import pytest
from support.builders.engine import a_request, a_scheduler
from support.fakes.runner import FakeRunner, expected_output
from triptych.errors import InternalError
from triptych_engine.core import EngineCore
from triptych_engine.scheduling.output import SequenceOutput, StepResult
from triptych_engine.scheduling.request import FinishReason, Request, TokenLogprobs


class Loop:
    """The step loop over a fake executor, step by step on this thread."""

    def __init__(self, max_new_tokens: int, *, async_scheduling: bool = True, num_blocks: int = 64) -> None:
        self.scheduler, self.runner = a_scheduler(num_blocks, num_drafts=max_new_tokens - 1), FakeRunner()
        self.outputs: list[SequenceOutput] = []
        self.core = EngineCore(
            self.scheduler,
            self.runner,
            lambda step, outputs, load: self.outputs.extend(outputs),
            async_scheduling=async_scheduling,
        )

    def run(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)
        while self.scheduler.has_work or self.core.num_in_flight:
            self.core.step()
            self.scheduler.check_integrity()
        assert self.runner.sequences == {}
        assert self.scheduler.kv_cache.pool.num_free_blocks == self.scheduler.kv_cache.pool.num_blocks

    def text(self, request_id: str = "r") -> list[int]:
        return [token for output in self.outputs if output.request_id == request_id for token in output.token_ids]

    def last(self, request_id: str = "r") -> SequenceOutput:
        (last,) = [output for output in self.outputs if output.request_id == request_id and output.finish_reason is not None]
        return last


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize(("num_tokens", "num_steps"), [(1, 21), (2, 11), (4, 6)])
def test_the_text_is_the_same_in_fewer_steps(async_scheduling: bool, num_tokens: int, num_steps: int):
    loop = Loop(4, async_scheduling=async_scheduling)
    loop.runner.num_new_tokens = lambda most: min(num_tokens, most)
    request = a_request(max_tokens=21)
    loop.run(request)
    assert loop.text() == expected_output([1, 2, 3], request.sampling)
    assert loop.runner.num_steps == num_steps  # the prompt's step brings one token, the others up to so many
    assert loop.last().usage == (3, 21, 0)


def test_a_request_is_not_scheduled_while_it_is_unknown_how_many_tokens_it_has():
    loop = Loop(4)
    loop.scheduler.add(a_request(max_tokens=21))
    first = loop.scheduler.schedule()
    assert first.max_new_tokens == {"r": 1}
    loop.runner.launch(first)
    loop.runner.sample(first.step_id)
    second = loop.scheduler.schedule()  # a prompt's one token has its place
    assert second.max_new_tokens == {"r": 4}
    assert loop.scheduler.schedule().num_scheduled_tokens == {}
    loop.scheduler.update_from_output(first, loop.runner.result(first.step_id))
    assert loop.scheduler.schedule().num_scheduled_tokens == {}
    loop.scheduler.update_from_output(second, StepResult(token_ids={"r": [5, 6]}))
    assert loop.scheduler.schedule().num_scheduled_tokens == {"r": 1}


def test_tokens_after_a_stop_token_are_cut():
    alone = expected_output([1, 2, 3], a_request(max_tokens=20).sampling)
    stop = next(token for index, token in enumerate(alone) if index % 4 == 2 and token not in alone[:index])  # amid a step's tokens
    loop = Loop(4)
    request = a_request(max_tokens=20, stop_token_ids=frozenset({stop}))
    loop.run(request)
    assert loop.text() == alone[: alone.index(stop) + 1]
    assert (loop.last().finish_reason, loop.last().stop_token_id) == (FinishReason.STOP, stop)


def test_no_step_may_bring_more_tokens_than_are_wanted():
    loop = Loop(4)
    loop.run(a_request(max_tokens=7))
    assert loop.text() == expected_output([1, 2, 3], a_request(max_tokens=7).sampling)
    assert loop.last().finish_reason is FinishReason.LENGTH


def test_only_what_was_kept_is_found_in_the_prefix_cache():
    """One block holds the tokens up to the stop token, and after it those that were computed but cut."""
    alone = expected_output([1, 2, 3], a_request(max_tokens=20).sampling)
    loop = Loop(5)
    loop.run(a_request("first", max_tokens=20, stop_token_ids=frozenset({alone[3]})))
    num_kept = len(loop.text("first"))
    assert num_kept <= 4
    loop.run(a_request("second", [1, 2, 3, *alone[:10]], max_tokens=1))
    num_computed = 3 + num_kept - 1  # the last token was never an input
    assert loop.last("second").usage == (13, 1, num_computed // 4 * 4)


def test_rejected_tokens_are_computed_again():
    """Whatever stands in the blocks after the tokens that were brought is never read: the fake would notice."""
    loop = Loop(5, num_blocks=12)
    counts = iter([1, 3, 1, 5, 2] * 100)
    loop.runner.num_new_tokens = lambda most: min(next(counts), most)
    requests = [a_request(f"r{i}", [i, 7, 8], max_tokens=15) for i in range(3)]
    loop.run(*requests)
    for request in requests:
        assert loop.text(request.request_id) == expected_output(request.prompt_token_ids, request.sampling)


def test_where_blocks_lack_a_step_brings_fewer_tokens_and_leaves_others_their_next_block():
    loop = Loop(8, num_blocks=4)
    requests = [a_request("r0", [1, 7, 8], max_tokens=9), a_request("r1", [2, 7, 8, 9], max_tokens=9)]
    loop.run(*requests)
    for request in requests:
        assert loop.text(request.request_id) == expected_output(request.prompt_token_ids, request.sampling)


def test_log_probabilities_are_cut_with_their_tokens():
    loop = Loop(4, async_scheduling=False)
    loop.scheduler.add(a_request(max_tokens=20, stop_token_ids=frozenset({8}), logprobs=0))
    loop.core.step()
    scheduled = loop.scheduler.schedule()
    entries = [TokenLogprobs(token, -1.0, 1) for token in (7, 8, 9)]
    (output,) = loop.scheduler.update_from_output(scheduled, StepResult(token_ids={"r": [7, 8, 9]}, logprobs={"r": entries}))
    assert (output.token_ids, output.logprobs) == ([7, 8], entries[:2])


@pytest.mark.parametrize("token_ids", [[], [1, 2, 3, 4, 5], None])
def test_a_step_that_brings_none_or_too_many_fails_its_request_alone(token_ids: list[int] | None):
    loop = Loop(4, async_scheduling=False)
    loop.scheduler.add(a_request("bad"))
    loop.scheduler.add(a_request("good", [4, 5]))
    loop.core.step()
    scheduled = loop.scheduler.schedule()
    tokens = {"good": [7]} if token_ids is None else {"good": [7], "bad": token_ids}
    outputs = {output.request_id: output for output in loop.scheduler.update_from_output(scheduled, StepResult(token_ids=tokens))}
    assert isinstance(outputs["bad"].error, InternalError)
    assert outputs["good"].token_ids == [7]
    loop.scheduler.check_integrity()
