"""The scheduler's rules, one by one, with a fake runner."""

from __future__ import annotations

import pytest
from support.builders.engine import a_request, a_scheduler
from support.fakes.runner import FakeRunner, expected_output
from triptych.errors import DuplicateRequestError, InternalError, NeverFitsError, QueueFullError
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import FinishReason, Request
from triptych_engine.scheduling.scheduler import Scheduler


def step(scheduler: Scheduler, runner: FakeRunner) -> list[SequenceOutput]:
    scheduled = scheduler.schedule()
    outputs = scheduler.update_from_output(scheduled, runner.execute(scheduled))
    scheduler.check_integrity()
    return outputs


def run_to_end(scheduler: Scheduler, runner: FakeRunner, max_steps: int = 1000) -> dict[str, list[SequenceOutput]]:
    outputs: dict[str, list[SequenceOutput]] = {}
    for _ in range(max_steps):
        if not scheduler.live_request_ids:
            return outputs
        for output in step(scheduler, runner):
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError("requests do not finish")


def text(outputs: list[SequenceOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


def test_decodes_and_a_long_prefill_share_a_step():
    scheduler, runner = a_scheduler(max_num_batched_tokens=8), FakeRunner()
    scheduler.add(a_request("short", [1, 2, 3]))
    step(scheduler, runner)
    scheduler.add(a_request("long", list(range(20))))
    scheduled = scheduler.schedule()
    assert scheduled.num_scheduled_tokens == {"short": 1, "long": 7}


def test_a_chunked_prompt_gives_its_first_token_with_its_last_chunk():
    scheduler, runner = a_scheduler(max_num_batched_tokens=8), FakeRunner()
    scheduler.add(a_request("r", list(range(20))))
    assert [len(step(scheduler, runner)) for _ in range(3)] == [0, 0, 1]


def test_no_step_exceeds_the_token_budget():
    scheduler, runner = a_scheduler(max_num_batched_tokens=10), FakeRunner()
    for i in range(8):
        scheduler.add(a_request(f"r{i}", list(range(i, i + 13))))
    run_to_end(scheduler, runner)
    assert runner.max_batched_tokens == 10


def test_requests_beyond_max_num_seqs_wait_their_turn_in_order():
    scheduler, runner = a_scheduler(max_num_seqs=2), FakeRunner()
    for i in range(5):
        scheduler.add(a_request(f"r{i}", max_tokens=2))
    step(scheduler, runner)
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 3)
    finished = []
    while scheduler.live_request_ids:
        finished += [output.request_id for output in step(scheduler, runner) if output.finish_reason]
    assert finished == [f"r{i}" for i in range(5)]


def test_a_lower_priority_number_runs_first():
    scheduler, runner = a_scheduler(max_num_seqs=1), FakeRunner()
    for request_id, priority in (("late", 5), ("soon", -1), ("default", 0)):
        request = a_request(request_id, max_tokens=1)
        request.priority = priority
        scheduler.add(request)
    finished = [output.request_id for _ in range(3) for output in step(scheduler, runner)]
    assert finished == ["soon", "default", "late"]


def test_what_another_engine_began_goes_before_new_requests_also_shorter_ones():
    scheduler, runner = a_scheduler(max_num_batched_tokens=8), FakeRunner()
    for i in range(3):
        scheduler.add(a_request(f"new{i}", [i] * 4))
    prompt, carried = list(range(20)), [21, 22]
    scheduler.add(Request("begun", prompt, a_request(max_tokens=4).sampling, carried_token_ids=carried))
    computed = []
    while "begun" in scheduler.live_request_ids:
        scheduled = scheduler.schedule()
        computed.append(scheduled.num_scheduled_tokens.get("begun", 0))
        scheduler.update_from_output(scheduled, runner.execute(scheduled))
        scheduler.check_integrity()
    assert computed == [8, 8, 6, 1]


def test_preempted_requests_give_the_same_text_as_alone():
    scheduler, runner = a_scheduler(num_blocks=12, max_num_seqs=8), FakeRunner()
    requests = [a_request(f"r{i}", [i, i + 1, i + 2], max_tokens=30) for i in range(6)]
    for request in requests:
        scheduler.add(request)
    outputs = run_to_end(scheduler, runner)
    assert scheduler.num_preemptions > 0
    for request in requests:
        assert text(outputs[request.request_id]) == expected_output(request.prompt_token_ids, request.sampling)
    assert scheduler.kv_cache.pool.num_free_blocks == 12


def test_the_request_that_should_run_last_is_preempted():
    scheduler, runner = a_scheduler(num_blocks=4, max_num_seqs=3), FakeRunner()
    first, second = a_request("first", [1, 2, 3, 4], max_tokens=12), a_request("second", [5, 6, 7, 8], max_tokens=12)
    scheduler.add(first)
    scheduler.add(second)
    while not scheduler.num_preemptions:
        step(scheduler, runner)
    assert (first.num_preemptions, second.num_preemptions) == (0, 1)


def test_timings_and_usage_come_with_the_last_output():
    scheduler, runner = a_scheduler(), FakeRunner()
    scheduler.add(a_request("r", [1, 2, 3], max_tokens=4))
    last = run_to_end(scheduler, runner)["r"][-1]
    assert last.usage == (3, 4, 0)
    assert last.timings is not None
    assert last.timings.queue_s >= 0
    assert last.finish_reason is FinishReason.LENGTH


def test_cached_tokens_are_reported():
    scheduler, runner = a_scheduler(), FakeRunner()
    prompt = list(range(10))
    scheduler.add(a_request("first", prompt, max_tokens=1))
    run_to_end(scheduler, runner)
    scheduler.add(a_request("second", prompt, max_tokens=1))
    assert run_to_end(scheduler, runner)["second"][-1].usage == (10, 1, 8)


def test_a_stop_token_ends_the_sequence_and_is_named():
    prompt = [1, 2, 3]
    third = expected_output(prompt, a_request().sampling)[2]
    scheduler, runner = a_scheduler(), FakeRunner()
    scheduler.add(a_request("r", prompt, stop_token_ids=frozenset({third})))
    outputs = run_to_end(scheduler, runner)["r"]
    assert text(outputs)[-1] == outputs[-1].stop_token_id == third
    assert outputs[-1].finish_reason is FinishReason.STOP


def test_max_tokens_zero_computes_the_prompt_and_generates_nothing():
    scheduler, runner = a_scheduler(), FakeRunner()
    scheduler.add(a_request("r", max_tokens=0))
    (output,) = run_to_end(scheduler, runner)["r"]
    assert (output.token_ids, output.finish_reason, output.usage) == ([], FinishReason.LENGTH, (3, 0, 0))


def test_the_end_of_the_context_ends_the_sequence():
    scheduler, runner = a_scheduler(max_model_len=10), FakeRunner()
    scheduler.add(a_request("r", [1, 2, 3], max_tokens=100))
    outputs = run_to_end(scheduler, runner)["r"]
    assert len(text(outputs)) == 7
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_an_aborted_request_gives_its_blocks_back_at_once():
    scheduler, runner = a_scheduler(), FakeRunner()
    scheduler.add(a_request("running"))
    step(scheduler, runner)
    scheduler.add(a_request("waiting"))
    outputs = scheduler.abort(["running", "waiting", "unknown"])
    assert [(o.request_id, o.finish_reason) for o in outputs] == [("running", FinishReason.ABORT), ("waiting", FinishReason.ABORT)]
    assert scheduler.kv_cache.pool.num_free_blocks == 64
    assert scheduler.has_work  # the runner has yet to forget it
    step(scheduler, runner)
    assert not scheduler.has_work
    assert runner.sequences == {}


def test_a_request_that_fails_in_the_runner_fails_alone():
    scheduler, runner = a_scheduler(), FakeRunner()
    good, bad = a_request("good", [1, 2]), a_request("bad", [3, 4])
    scheduler.add(good)
    scheduler.add(bad)
    runner.fail_requests.add("bad")
    outputs = run_to_end(scheduler, runner)
    assert isinstance(outputs["bad"][-1].error, InternalError)
    assert text(outputs["good"]) == expected_output([1, 2], good.sampling)


def test_prompt_logprobs_of_all_chunks_come_once_with_the_first_token():
    scheduler, runner = a_scheduler(max_num_batched_tokens=4), FakeRunner()
    scheduler.add(a_request("r", list(range(10)), max_tokens=3, prompt_logprobs=0))
    outputs = run_to_end(scheduler, runner)["r"]
    assert [[entry.token_id for entry in output.prompt_logprobs] for output in outputs] == [list(range(1, 10)), [], []]


def test_prompt_logprobs_come_once_also_after_preemption():
    scheduler, runner = a_scheduler(num_blocks=6, max_num_batched_tokens=5), FakeRunner()
    scheduler.add(a_request("first", list(range(8)), max_tokens=14))
    scheduler.add(a_request("second", list(range(20, 28)), max_tokens=6, prompt_logprobs=0))
    outputs = run_to_end(scheduler, runner)["second"]
    assert scheduler.num_preemptions > 0
    assert [entry.token_id for output in outputs for entry in output.prompt_logprobs] == list(range(21, 28))


def test_a_request_larger_than_the_cache_is_refused_with_the_numbers():
    scheduler = a_scheduler(num_blocks=4, block_size=4)
    with pytest.raises(NeverFitsError, match=r"needs 22 tokens .*15 prompt.* 8 output.* has 16"):
        scheduler.add(a_request("r", list(range(15))))
    assert not scheduler.has_work


def test_a_request_that_just_fits_runs():
    scheduler, runner = a_scheduler(num_blocks=4, block_size=4), FakeRunner()
    scheduler.add(a_request("r", list(range(9)), max_tokens=8))  # the last token is never fed back: 16 slots
    assert len(text(run_to_end(scheduler, runner)["r"])) == 8


def test_a_full_queue_refuses_with_a_hint():
    scheduler, runner = a_scheduler(max_num_seqs=2, max_waiting=1), FakeRunner()
    for request_id in "abc":  # two of them will run at once
        scheduler.add(a_request(request_id))
    step(scheduler, runner)
    with pytest.raises(QueueFullError, match="1 requests are waiting, the limit is 1") as caught:
        scheduler.add(a_request("d"))
    assert caught.value.retry_after_s == 1.0


def test_an_id_in_use_is_refused_and_the_first_request_goes_on():
    scheduler, runner = a_scheduler(), FakeRunner()
    scheduler.add(a_request("r"))
    with pytest.raises(DuplicateRequestError, match="'r' is in use"):
        scheduler.add(Request("r", [9], a_request().sampling))
    assert run_to_end(scheduler, runner)["r"][-1].finish_reason is FinishReason.LENGTH


def test_an_id_can_be_used_again_after_its_request_ended():
    scheduler, runner = a_scheduler(), FakeRunner()
    for _ in range(2):
        scheduler.add(a_request("r"))
        run_to_end(scheduler, runner)
