"""Sequences go on at another engine: theirs was lost, drains, or is stalled."""

from __future__ import annotations

import asyncio

import pytest
from support.drivers.engine_router import Engine, Heard, a_request, engines
from support.waiting import until
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.cluster import connection as connection_module
from triptych_frontend.engines import connection as engine_connection
from triptych_frontend.engines import placement as placement_module


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MIN_BACKOFF_S", 0.001)


def of(made: dict[str, Engine], request_id: str) -> tuple[Engine, Engine]:
    """The engine of two that has a request, and the other one."""
    first, second = made.values()
    return (first, second) if request_id in first.carried else (second, first)


async def test_a_sequence_whose_engine_is_lost_goes_on_behind_its_output() -> None:
    async with engines("a:1", "b:1") as (router, made, _):
        heard, request = Heard(), a_request()
        request.prompt_token_ids.extend([1, 2])
        request.sampling.CopyFrom(common_pb2.SamplingParams(seed=7, max_tokens=9, prompt_logprobs=1))
        router.start(request, heard)
        engine, other = of(made, "r")
        engine.say("r", 10, 11)
        engine.say("r", 12)
        engine.is_up.clear()
        engine.crash()
        await until(lambda: bool(other.requests))
        (again,) = other.requests
        other.say(again.request_id, 13)
        assert (list(again.prompt_token_ids), again.num_output_tokens) == ([1, 2, 10, 11, 12], 3)
        assert (again.sampling.seed, again.sampling.max_tokens) == (7, 9)
        assert not again.sampling.HasField("prompt_logprobs"), "they came with the first output"
        assert (heard.token_ids, heard.errors) == ({0: [10, 11, 12, 13]}, [])


async def test_each_sequence_of_a_request_goes_on_by_itself() -> None:
    async with engines("a:1", "b:1") as (router, made, _):
        heard, request = Heard(), a_request(n=3)
        request.sampling.seed = 2**63 - 2
        call = router.start(request, heard)
        engine, other = of(made, "r")
        engine.say("r", 5, index=1)
        ended = engine_pb2.SequenceOutput(request_id="r", index=0, token_ids=[4], finish_reason=common_pb2.FINISH_REASON_STOP)
        engine.received(engine_pb2.SessionResponse(outputs=[ended]))
        call.abort(2)
        engine.is_up.clear()
        engine.crash()
        await until(lambda: len(other.requests) == 2)
        assert [(one.num_output_tokens, one.n) for one in other.requests] == [(1, 1), (0, 1)]
        assert [one.sampling.seed for one in other.requests] == [2**63 - 1, -(2**63)]
        last = other.requests[1].request_id
        assert [(one.request_id, one.index) for one in other.ending().abort_sequences] == [(last, 0)]
        other.say(other.requests[0].request_id, 6)
        call.close()
        assert other.is_idle
        assert set(other.ending().abort) == {one.request_id for one in other.requests}
        assert (heard.token_ids, heard.errors) == ({0: [4], 1: [5, 6]}, [])


async def test_an_engine_that_drains_hands_its_sequences_over_and_gets_no_more_of_them() -> None:
    async with engines("a:1", "b:1") as (router, made, _):
        heard = Heard()
        router.start(a_request(), heard)
        engine, other = of(made, "r")
        engine.say("r", 1)
        engine.say("r", 2, going_away=True)
        (again,) = other.requests
        assert again.num_output_tokens == 2, "the outputs of the last message count"
        assert list(engine.ending().abort) == ["r"]
        engine.say("r", 99)
        other.say(again.request_id, 3)
        assert (heard.token_ids, heard.errors) == ({0: [1, 2, 3]}, [])


async def test_without_another_engine_a_draining_one_finishes_its_work() -> None:
    async with engines("a:1") as (router, made, _):
        heard = Heard()
        router.start(a_request(), heard)
        made["a:1"].say("r", 1, going_away=True)
        made["a:1"].say("r", 2)
        assert not made["a:1"].ending().abort
        assert (heard.token_ids, heard.errors) == ({0: [1, 2]}, [])


@pytest.mark.parametrize("how", ["silent", "hanging", "restarting"])
async def test_an_engine_that_has_stopped_loses_its_sequences_and_is_doubted(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(engine_connection, "_TICK_S", 0.01)
    if how == "silent":
        monkeypatch.setattr(engine_connection, "SILENCE_S", 0.05)
    async with engines("a:1", "b:1") as (router, made, _):
        heard = Heard()
        router.start(a_request(), heard)
        engine, other = of(made, "r")
        watch = asyncio.create_task(engine._watch())
        engine.say("r", 1)
        if how == "hanging":
            busy = engine_pb2.Load(num_running=1, step_age_s=61, longest_step_s=3)
            engine.received(engine_pb2.SessionResponse(load=busy))
        if how == "restarting":
            engine.received(engine_pb2.SessionResponse(load=engine_pb2.Load(is_restarting=True)))
        await until(lambda: bool(other.requests))
        assert engine.in_doubt.is_set()
        assert engine.carried == {}
        assert list(engine.ending().abort) == ["r"], "it learns of it when it goes on"
        engine.say("r", 98)
        assert engine.in_doubt.is_set() == (how != "silent"), "a message alone does not say that steps end"
        engine.received(engine_pb2.SessionResponse(load=engine_pb2.Load(longest_step_s=3)))
        assert not engine.in_doubt.is_set()
        watch.cancel()
        assert (heard.token_ids, heard.errors) == ({0: [1]}, [])


async def test_an_idle_engine_that_restarts_is_doubted_until_it_works_again() -> None:
    async with engines("a:1", "b:1") as (_, made, _resolver):
        engine = made["a:1"]
        for is_restarting in (True, True, False):
            engine._take_load(engine_pb2.Load(is_restarting=is_restarting))
            assert engine.in_doubt.is_set() == is_restarting


async def test_without_another_engine_a_restarting_one_goes_on_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_connection, "_TICK_S", 0.01)
    async with engines("a:1") as (router, made, _):
        heard, engine = Heard(), made["a:1"]
        router.start(a_request(), heard)
        watch = asyncio.create_task(engine._watch())
        engine.say("r", 1)
        engine.received(engine_pb2.SessionResponse(load=engine_pb2.Load(is_restarting=True)))
        await asyncio.sleep(0.1)
        engine.received(engine_pb2.SessionResponse(load=engine_pb2.Load()))
        engine.say("r", 2)
        watch.cancel()
        assert (heard.token_ids, heard.errors) == ({0: [1, 2]}, [])
        assert not engine.ending().abort


async def test_an_engine_that_had_nothing_to_do_is_not_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_connection, "_TICK_S", 0.01)
    monkeypatch.setattr(engine_connection, "SILENCE_S", 0.05)
    async with engines("a:1", "b:1") as (router, made, _):
        watches = [asyncio.create_task(engine._watch()) for engine in made.values()]
        await asyncio.sleep(0.2)
        router.start(a_request(), Heard())
        engine, other = of(made, "r")
        await asyncio.sleep(0.02)
        assert not engine.in_doubt.is_set()
        assert not other.requests
        for watch in watches:
            watch.cancel()


async def test_an_engine_whose_steps_are_long_is_not_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """sgl-project/sglang #22511: long prompts made a server unhealthy, because no output came for 20 s."""
    async with engines("a:1", "b:1") as (router, made, _resolver):
        router.start(a_request(), Heard())
        engine, _ = of(made, "r")
        engine.received(engine_pb2.SessionResponse(load=engine_pb2.Load(num_running=1, step_age_s=61, longest_step_s=7)))
        assert not engine._why_stalled


async def test_a_sequence_that_nobody_can_go_on_with_ends_with_the_loss() -> None:
    async with engines("a:1", "b:1") as (router, made, _):
        heard = Heard()
        router.start(a_request(), heard)
        engine, other = of(made, "r")
        engine.say("r", 1)
        other.model = common_pb2.ModelInfo()  # an older version
        engine.is_up.clear()
        router._is_closed = True  # nothing is waited for
        engine.crash()
        await until(lambda: bool(heard.errors))
        assert not other.requests
    assert "went away" in str(heard.errors[0])


async def test_a_sequence_that_ran_for_long_may_try_all_engines_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_module, "_PROBATION_S", 0.0)
    async with engines("a:1", "b:1") as (router, made, _):
        heard = Heard()
        router.start(a_request(), heard)
        for number in range(4):
            await until(lambda: any(engine.carried for engine in made.values()))
            engine = next(one for one in made.values() if one.carried)
            (request_id,) = engine.carried
            engine.say(request_id, number)
            engine.crash()
            await until(lambda: all(one.is_connected for one in made.values()))
    assert heard.token_ids == {0: [*range(4)]}


async def test_a_request_that_every_engine_is_lost_with_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if it has output for long enough each time, so that it is not suspected."""
    monkeypatch.setattr(placement_module, "_PROBATION_S", 0.0)
    async with engines("a:1", "b:1") as (router, made, _):
        heard, num_losses = Heard(), 0
        router.start(a_request(), heard)
        while not heard.errors and num_losses < 20:
            await until(lambda: bool(heard.errors) or any(engine.carried for engine in made.values()))
            for engine in [one for one in made.values() if one.carried]:
                num_losses += 1
                (request_id,) = engine.carried
                engine.say(request_id, 1)
                engine.crash()
                await until(lambda engine=engine: not engine.carried)  # type: ignore[misc]
            await until(lambda: all(one.is_connected for one in made.values()))
        assert num_losses == 5
        assert "went away" in str(heard.errors[0])


async def test_any_number_of_drains_may_move_a_sequence() -> None:
    async with engines("a:1", "b:1") as (router, made, _):
        heard = Heard()
        router.start(a_request(), heard)
        for number in range(12):
            engine = next(one for one in made.values() if one.carried)
            (request_id,) = engine.carried
            engine.say(request_id, number, going_away=True)
            assert not engine.carried
            engine.connected(common_pb2.Instance(id=engine.instance_id, state=common_pb2.SERVER_STATE_SERVING), engine.model)
        assert (heard.token_ids, heard.errors) == ({0: [*range(12)]}, [])


@pytest.mark.parametrize("why_not", ["older", "in doubt", "busy"])
async def test_a_draining_engine_finishes_what_no_other_one_takes(why_not: str) -> None:
    async with engines("a:1", "b:1") as (router, made, _):
        heard = Heard()
        router.start(a_request(), heard)
        engine, other = of(made, "r")
        if why_not == "older":
            other.model = common_pb2.ModelInfo()
        elif why_not == "in doubt":
            other.doubt()
        else:  # what has no output yet might be refused there
            other.reported_load.num_waiting = 1
        engine.say("r", going_away=True)
        assert not engine.ending().abort
        engine.say("r", 1)
        assert not other.requests
        assert (heard.token_ids, heard.errors) == ({0: [1]}, [])


async def test_stalled_engines_do_not_pass_requests_to_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_connection, "_TICK_S", 0.005)
    monkeypatch.setattr(engine_connection, "SILENCE_S", 0.02)
    async with engines("a:1", "b:1") as (router, made, _):
        for number in range(4):
            router.start(a_request(f"r{number}"), Heard())
        watches = [asyncio.create_task(engine._watch()) for engine in made.values()]
        await until(lambda: all(engine.in_doubt.is_set() for engine in made.values()))
        num_sent = sum(len(engine.sent) for engine in made.values())
        await asyncio.sleep(0.1)
        assert sum(len(engine.sent) for engine in made.values()) == num_sent <= 8
        assert sum(len(engine._starts) for engine in made.values()) <= 4, "what was moved away is not sent"
        for watch in watches:
            watch.cancel()
