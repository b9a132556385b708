"""The simulation of a fleet: deterministic, and without losses of requests or blocks."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from triptych.v1 import engine_pb2
from triptych_engine.executor.simulated import SimulatedCosts
from triptych_engine.scheduling.scheduler import Scheduler
from triptych_engine.scheduling.step_costs import StepCosts
from triptych_engine.settings import EngineSettings

from benchmarks.errors import BenchmarkError
from benchmarks.simulation.engine import VirtualEngine
from benchmarks.simulation.figures import Limits, Record, summarize
from benchmarks.simulation.fit import fit, slowed
from benchmarks.simulation.frontend import VirtualFrontend
from benchmarks.simulation.setup import Grid, Overheads, Setup
from benchmarks.simulation.simulate import Simulation
from benchmarks.simulation.timeline import Timeline
from benchmarks.simulation.workload import Workload

COSTS = SimulatedCosts(StepCosts(0.01, 0.001, 0.0005))
LOAD = Workload("test", 4.0, 6.0, 2, (64, 128), (1, 3), (16, 64), (16, 64), (4, 24), 0.5)
OVERHEADS = Overheads(0.002, 0.0002, 0.0005, 0.0003, 0.00001, 0.0005, 0.00002, {"prefix": 2e-6})


def a_setup(**changes: Any) -> Setup:
    values: dict[str, Any] = {"costs": COSTS, "num_blocks": 200, "num_engines": 3, "overheads": OVERHEADS, "checks_every": 10}
    return Setup(**(values | changes))


def report_of(setup: Setup, load: Workload = LOAD, seed: int = 0) -> str:
    simulation = Simulation(setup)
    figures = simulation.run(load.conversations(seed))
    return json.dumps([figures, [(one.sent_s, one.first_s, one.last_s, one.num_output_tokens) for one in simulation.records]])


# -- the clock ----------------------------------------------------------------------------------------------------------------


def test_events_run_in_the_order_of_their_times_and_numbers() -> None:
    timeline, seen = Timeline(), list[tuple[str, float]]()
    for time_s, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        timeline.at(time_s, lambda name=name: seen.append((name, timeline.now_s)))
    timeline.run(until_s=1.5)
    assert seen == [("a", 1.0), ("b", 1.0)]
    timeline.run()
    assert seen[-1] == ("c", 2.0)
    with pytest.raises(AssertionError, match="was added at 2"):
        timeline.at(1.0, print)


def test_a_host_that_sleeps_at_random_gives_the_same_report(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = a_setup(num_frontends=2, losses=((2.0, 1),), restart_s=1.5)
    undisturbed = report_of(setup)
    assert report_of(setup) == undisturbed
    pauses, real_clock = random.Random(), time.monotonic

    def slowed(original: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*args: Any) -> Any:
            time.sleep(pauses.expovariate(5000))
            return original(*args)

        return slow

    for method in (Scheduler.schedule, Scheduler.update_from_output):
        monkeypatch.setattr(Scheduler, method.__name__, slowed(method))
    # Hours may pass on the host's clocks between any two looks at them.
    jumps = random.Random()
    for clock in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, clock, lambda: real_clock() + jumps.uniform(0, 1e5))
    disturbed = report_of(setup)
    monkeypatch.undo()
    assert disturbed == undisturbed
    assert report_of(setup, seed=1) != undisturbed
    jittered = replace(setup, jitter_seed=0)
    assert report_of(jittered) == report_of(jittered) != undisturbed


# -- conservation -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("routing", ["prefix", "least-load", "round-robin"])
def test_every_request_ends_once_with_all_its_tokens(routing: str) -> None:
    simulation = Simulation(a_setup(routing=routing, num_frontends=2, num_blocks=60))  # so few that they are evicted
    figures = simulation.run(LOAD.conversations(3))
    wanted = [(one.number, index, turn.max_tokens) for one in LOAD.conversations(3) for index, turn in enumerate(one.turns)]
    assert sorted((one.conversation, one.turn, one.num_output_tokens) for one in simulation.records) == wanted
    assert figures["num_failed"] == 0
    assert figures["num_evictions"] > 0
    assert figures["most_live"] > 3


def test_streams_of_a_lost_engine_go_on_elsewhere_and_are_computed_again() -> None:
    undisturbed, disturbed = Simulation(a_setup()), Simulation(a_setup(losses=((2.0, 0), (3.0, 1)), restart_s=0.5))
    busy = replace(LOAD, conversations_per_s=12.0)
    before, after = undisturbed.run(busy.conversations(0)), disturbed.run(busy.conversations(0))
    assert after["num_moved"] > 0
    assert after["num_failed"] == 0
    tokens = [sum(one.num_output_tokens for one in simulation.records) for simulation in (undisturbed, disturbed)]
    assert tokens[0] == tokens[1]
    assert after["hits"] < before["hits"]
    assert after["longest_gap_p99_ms"] > before["longest_gap_p99_ms"]


def test_requests_fail_where_no_engine_is_left() -> None:
    figures = Simulation(a_setup(num_engines=1, losses=((1.0, 0),))).run(LOAD.conversations(0))
    assert 0 < figures["num_failed"] < figures["num_requests"]


def test_steps_beyond_the_measured_grid_are_counted() -> None:
    assert Simulation(a_setup()).run(LOAD.conversations(0))["off_grid"] == 0
    assert Simulation(a_setup(grid=Grid(1, 8))).run(LOAD.conversations(0))["off_grid"] > 0.1


def test_a_broken_invariant_is_noticed() -> None:
    simulation = Simulation(a_setup())
    simulation.engines[0].scheduler.kv_cache.pool.allocate(1)  # nobody holds this block
    with pytest.raises(AssertionError, match="reference counts"):
        simulation.run(LOAD.conversations(0))


# -- noise --------------------------------------------------------------------------------------------------------------------


def test_without_noise_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    before = report_of(a_setup())
    monkeypatch.setattr(random.Random, "lognormvariate", None)
    assert report_of(a_setup(costs=replace(COSTS, step_noise=0.0))) == before


def test_noise_is_drawn_with_the_seed_and_changes_no_mean() -> None:
    quiet = a_setup(overheads=Overheads())  # so the order of requests is the same for all seeds
    noisy = replace(quiet, costs=replace(COSTS, step_noise=0.1))
    assert report_of(noisy) == report_of(noisy) != report_of(quiet)
    load = replace(LOAD, duration_s=60.0)
    runs = [Simulation(replace(noisy, jitter_seed=seed)).run(load.conversations(0)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    undisturbed = Simulation(quiet).run(load.conversations(0))
    for run in runs:
        assert run["step_s"] / run["num_steps"] == pytest.approx(undisturbed["step_s"] / undisturbed["num_steps"], rel=0.01)


@pytest.mark.parametrize("number", [0, 1])
def test_noise_is_of_an_engines_own_part_of_a_step_and_differs_between_engines(number: int) -> None:
    costs = SimulatedCosts(StepCosts(0.02, 0.0, 0.0001), step_noise=0.3)
    setup, timeline = a_setup(costs=costs, overheads=Overheads(slowdown=1.5, shared_step_s=0.5)), Timeline()
    engine = VirtualEngine(timeline, setup, number, EngineSettings())
    message = engine_pb2.EngineRequest(request_id="r", prompt_token_ids=range(1000, 1040))
    message.sampling.max_tokens = 20
    engine.submit(engine.life, VirtualFrontend(timeline, setup, [engine]).connections[0], message)
    timeline.run()
    rng = random.Random(f"None {number}")
    own_s = [1.5 * costs.noise(rng) * seconds for seconds in [0.02 + 40 * 0.0001] + 19 * [0.02]]
    assert engine.busy_s == pytest.approx(20 * 0.5 + sum(own_s))


# -- policies -----------------------------------------------------------------------------------------------------------------


def test_routing_by_prefix_finds_more_and_answers_sooner() -> None:
    figures = {
        name: Simulation(a_setup(routing=name, num_engines=4)).run(LOAD.conversations(5)) for name in ("prefix", "round-robin")
    }
    assert figures["prefix"]["hits"] > figures["round-robin"]["hits"]
    assert figures["prefix"]["ttft_mean_ms"] < figures["round-robin"]["ttft_mean_ms"]


def test_a_frontend_that_is_busy_makes_requests_wait() -> None:
    slow = Overheads(frontend_request_s=0.05)
    one, four = (Simulation(a_setup(overheads=slow, num_frontends=count)).run(LOAD.conversations(1)) for count in (1, 4))
    assert one["ttft_p50_ms"] > four["ttft_p50_ms"] >= 50
    assert one["ttft_mean_ms"] > four["ttft_mean_ms"]
    assert one["frontend_busy"] > four["frontend_busy"]


def test_a_frontend_knows_what_engines_have_sent_and_not_more() -> None:
    timeline, setup = Timeline(), a_setup(num_engines=1, overheads=Overheads(message_s=0.1))
    engine = VirtualEngine(timeline, setup, 0, EngineSettings())
    one, other = (VirtualFrontend(timeline, setup, [engine]).connections[0] for _ in range(2))
    message = engine_pb2.EngineRequest(request_id="r", prompt_token_ids=range(1000, 1040))
    message.sampling.max_tokens = 20
    engine.submit(engine.life, one, message)
    timeline.run(until_s=0.09)
    assert engine.num_live == 1
    assert (one.load, other.load, len(other.blocks.held)) == (0, 0, 0)  # nothing has arrived
    timeline.run()
    assert len(other.blocks.held) == len(one.blocks.held) == 3
    assert other.load == 0  # it was told of the end, too


# -- figures ------------------------------------------------------------------------------------------------------------------


def test_goodput_counts_what_is_within_both_limits() -> None:
    records = []
    for ttft_s, token_s in ((0.1, 0.01), (2.0, 0.01), (0.1, 0.5)):
        record = Record(0, 0, 1.0, 10)
        for index in range(3):
            record.got(1.0 + ttft_s + index * token_s, 1)
        records.append(record)
    records.append(Record(0, 1, 1.0, 10, error="lost"))
    figures = summarize(records, 30, 40, Limits(1.0, 0.1))
    assert figures["good_share"] == 1 / 4
    assert figures["num_failed"] == 1
    assert figures["hits"] == 0.75
    assert figures["seconds"] == pytest.approx(3.02)
    assert figures["goodput_per_s"] == pytest.approx(1 / 3.02)


def test_the_fit_finds_what_is_outside_of_the_steps() -> None:
    conversations = list(LOAD.conversations(0))
    truth = a_setup(overheads=Overheads(request_s=0.02, host_step_s=0.004), checks_every=0)
    seen = Simulation(truth).run(conversations)
    begin = a_setup(overheads=Overheads(request_s=0.004, host_step_s=0.001), checks_every=0)
    found, error = fit(begin, conversations, seen, Limits(), computes=False)
    assert error < 0.05
    assert found.overheads.request_s == pytest.approx(0.02, rel=0.5)
    assert found.overheads.host_step_s == pytest.approx(0.004, rel=0.5)


@pytest.mark.parametrize("slowdown", [0.85, 1.0, 1.3])
def test_by_what_others_slow_the_steps_is_found_in_what_engines_count(slowdown: float) -> None:
    conversations, shared_step_s = list(LOAD.conversations(0)), 0.001
    truth = a_setup(overheads=Overheads(request_s=0.02, slowdown=slowdown, shared_step_s=shared_step_s))
    seen = Simulation(truth).run(conversations)
    seen["cpu_s"] = {"engine": seen["step_s"] - shared_step_s * seen["num_steps"]}
    found, _ = fit(a_setup(overheads=Overheads(request_s=0.02), checks_every=0), conversations, seen, Limits(), computes=True)
    assert found.overheads.slowdown == pytest.approx(slowdown, rel=0.05)
    assert found.overheads.shared_step_s == pytest.approx(shared_step_s)


@pytest.mark.parametrize("step_s", [1.0, 9e3])
def test_costs_of_another_machine_are_refused(step_s: float) -> None:
    with pytest.raises(BenchmarkError, match=rf"took {step_s} s together, simulated ones .* measure the costs on this machine"):
        slowed(a_setup(), list(LOAD.conversations(0)), step_s, Limits())


def test_a_run_leaves_the_levels_of_logs_as_they_were() -> None:
    loggers = [logging.getLogger(name) for name in ("triptych_common", "triptych_engine", "triptych_frontend")]
    before = [logger.level for logger in loggers]
    Simulation(Setup(SimulatedCosts(StepCosts(0.01, 0.001, 0.001)), 100, 1)).run([], Limits())
    assert [logger.level for logger in loggers] == before
