"""A step is scheduled while the one before it runs: the same outputs, and nothing lost where the host learns of an end too late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.builders.engine import GREEDY, a_request, a_scheduler, a_tiny_llama_config, save_random_model
from support.drivers.engine import EngineDriver, Generated, in_this_process
from support.fakes.runner import FakeRunner, expected_output, next_token
from triptych_engine.core import EngineCore
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import FinishReason, Request, SamplingParams
from triptych_engine.scheduling.scheduler import Scheduler


class Loop:
    """The step loop over a fake runner, step by step on this thread."""

    def __init__(self, scheduler: Scheduler | None = None) -> None:
        self.scheduler, self.runner = scheduler or a_scheduler(), FakeRunner()
        self.outputs: list[SequenceOutput] = []
        self.core = EngineCore(
            self.scheduler, self.runner, lambda step, outputs, load: self.outputs.extend(outputs), async_scheduling=True
        )

    def run(self) -> None:
        while self.scheduler.has_work or self.core.num_in_flight:
            self.core.step()
            self.scheduler.check_integrity()
        assert self.runner.sequences == {}
        pool = self.scheduler.kv_cache.pool
        assert pool.num_free_blocks == pool.num_blocks

    def text(self, request_id: str) -> list[int]:
        return [token for output in self.outputs if output.request_id == request_id for token in output.token_ids]

    def ends(self, request_id: str) -> list[FinishReason]:
        return [o.finish_reason for o in self.outputs if o.request_id == request_id and o.finish_reason is not None]


def test_steps_overlap():
    loop = Loop()
    loop.scheduler.add(a_request())
    loop.run()
    assert loop.runner.max_in_flight == 2
    assert loop.text("r") == expected_output([1, 2, 3], GREEDY)


def test_no_step_is_wasted_on_an_end_that_is_known_beforehand():
    loop = Loop()
    loop.scheduler.add(a_request("long", max_tokens=5))
    loop.scheduler.add(a_request("none", max_tokens=0))
    loop.run()
    assert loop.runner.num_steps == 5
    assert loop.ends("none") == loop.ends("long") == [FinishReason.LENGTH]


def test_the_token_after_a_stop_token_is_dropped():
    stop = expected_output([1, 2, 3], GREEDY)[2]
    loop = Loop()
    request = a_request(stop_token_ids=frozenset({stop}))
    loop.scheduler.add(request)
    loop.run()
    assert loop.text("r") == expected_output([1, 2, 3], request.sampling)
    assert loop.ends("r") == [FinishReason.STOP]
    assert loop.outputs[-1].usage == (3, len(loop.text("r")), 0)
    assert loop.runner.num_steps == len(loop.text("r")) + 1


def test_an_id_may_come_again_while_a_step_with_its_predecessor_is_in_flight():
    loop = Loop()
    loop.scheduler.add(a_request(prompt=[1, 2, 3]))
    loop.core.step()
    loop.core.step()
    loop.scheduler.abort(["r"])
    again = a_request(prompt=[4, 5])
    loop.scheduler.add(again)
    loop.outputs.clear()
    loop.run()
    assert loop.text("r") == expected_output([4, 5], again.sampling)


def test_a_failed_step_takes_those_along_that_are_in_the_next():
    loop = Loop()
    loop.scheduler.add(a_request("early"))
    loop.core.step()
    loop.scheduler.add(a_request("late", prompt=[7, 8]))
    loop.runner.fail_next_step = RuntimeError("device lost")
    loop.core.step()  # launches a step with both, then learns that the first has failed
    assert loop.ends("early") == [FinishReason.ERROR]
    assert loop.ends("late") == []
    loop.run()
    assert loop.text("late") == expected_output([7, 8], GREEDY)


def test_blocks_are_taken_from_others_only_when_no_step_writes_to_them():
    loop = Loop(a_scheduler(num_blocks=6, max_num_seqs=3))
    requests = [a_request(f"r{i}", prompt=[i, i + 1, i + 2], max_tokens=12) for i in range(3)]
    for request in requests:
        loop.scheduler.add(request)
    loop.run()
    assert loop.scheduler.num_preemptions > 0
    for request in requests:
        assert loop.text(request.request_id) == expected_output(request.prompt_token_ids, request.sampling)


def test_an_aborted_request_keeps_its_blocks_until_no_step_writes_to_them():
    """sgl-project/sglang #35049: an abort gave blocks back while they were still being written to."""
    loop = Loop(a_scheduler(num_blocks=6))
    pool = loop.scheduler.kv_cache.pool
    loop.scheduler.add(a_request("early", prompt=list(range(16)), max_tokens=8))
    loop.core.step()
    loop.core.step()
    assert loop.core.num_in_flight == 1
    num_free = pool.num_free_blocks
    loop.scheduler.abort(["early"])
    assert pool.num_free_blocks == num_free < 2
    late = a_request("late", prompt=list(range(20, 40)), max_tokens=4)
    loop.scheduler.add(late)
    loop.run()
    assert loop.text("late") == expected_output(late.prompt_token_ids, late.sampling)


def test_the_host_does_not_wait_when_there_are_blocks():
    """The fake runner's results are asked for a step late throughout."""
    loop = Loop()
    loop.scheduler.add(a_request(max_tokens=20))
    for _ in range(10):
        loop.core.step()
        assert loop.core.num_in_flight == 1
    assert next_token([1, 2, 3]) == loop.text("r")[0]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> EngineDriver:
    path: Path = save_random_model(tmp_path_factory.mktemp("async"), a_tiny_llama_config())
    return EngineDriver(path, max_num_seqs=4, block_size=16, num_blocks=24)


SAMPLINGS = [
    GREEDY,
    replace(GREEDY, max_tokens=30),
    replace(GREEDY, temperature=1.0, seed=3, max_tokens=25),
    replace(GREEDY, temperature=0.8, seed=4, top_k=20, top_p=0.9, min_p=0.01, max_tokens=25),
    replace(GREEDY, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.3, max_tokens=25),
    replace(GREEDY, temperature=1.0, seed=5, min_tokens=10, stop_token_ids=frozenset(range(40)), max_tokens=25),
    replace(GREEDY, temperature=1.0, seed=6, stop_token_ids=frozenset(range(20)), max_tokens=25),
    replace(GREEDY, logprobs=3, prompt_logprobs=2, max_tokens=12),
    replace(GREEDY, logit_bias={5: 4.0}, bad_token_ids=(7,), max_tokens=12),
    replace(GREEDY, max_tokens=0, prompt_logprobs=0),
]


def _requests() -> list[Request]:
    prompts = [[(7 * i + j) % 90 + 3 for j in range(5 + 9 * (i % 4))] for i in range(len(SAMPLINGS))]
    return [Request(f"r{i}", prompt, sampling) for i, (prompt, sampling) in enumerate(zip(prompts, SAMPLINGS, strict=True))]


@pytest.mark.parametrize("num_blocks", [24, 7])
def test_the_real_runner_gives_the_same_outputs(driver: EngineDriver, num_blocks: int):
    """Every way to sample, more requests than seats, prompts cut into chunks; with 7 blocks also preemption."""

    def generate(async_scheduling: bool) -> tuple[dict[str, Generated], int]:
        scheduler = driver.scheduler(max_num_batched_tokens=16, num_blocks=num_blocks)
        arrivals = [0, 0, 1, 1, 2, 3, 5, 8, 8, 9]
        generated = driver.run(scheduler, _requests(), arrivals=arrivals, async_scheduling=async_scheduling)
        assert scheduler.kv_cache.pool.num_free_blocks == num_blocks
        return generated, scheduler.num_preemptions

    (expected, preempted), (got, preempted_async) = generate(False), generate(True)
    assert bool(preempted) == bool(preempted_async) == (num_blocks == 7)
    for request_id, one in expected.items():
        other = got[request_id]
        assert other.token_ids == one.token_ids
        assert one.last is not None
        assert other.last is not None
        assert other.last.finish_reason is one.last.finish_reason
        assert other.last.usage is not None
        assert one.last.usage is not None
        assert other.last.usage[:2] == one.last.usage[:2]
        for a, b in zip(one.logprobs + one.prompt_logprobs, other.logprobs + other.prompt_logprobs, strict=True):
            assert (a.token_id, a.rank, a.top_token_ids) == (b.token_id, b.rank, b.top_token_ids)
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)


@in_this_process
def test_logits_without_a_finite_value_fail_one_request_late(driver: EngineDriver, monkeypatch: pytest.MonkeyPatch):
    """Whatever token comes of them is fed to a step that is in flight when they are noticed."""
    forward = driver.runner._forward
    steps = 0

    def poisoned(*args: object, **kwargs: object) -> object:
        nonlocal steps
        steps += 1
        logits = forward(*args, **kwargs)  # type: ignore[arg-type]
        if steps == 3:
            logits[0] = float("nan")
        return logits

    monkeypatch.setattr(driver.runner, "_forward", poisoned)
    sampling = SamplingParams(max_tokens=6, temperature=0.0)
    requests = [Request(f"r{i}", [5 + i, 6, 7], sampling) for i in range(2)]
    generated = driver.run(driver.scheduler(), requests, async_scheduling=True)
    reasons = {key: one.last.finish_reason for key, one in generated.items() if one.last is not None}
    assert reasons == {"r0": FinishReason.ERROR, "r1": FinishReason.LENGTH}
