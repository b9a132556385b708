"""An engine of the simulation does what the real step loop does with the same costs."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.builders.tokenizer import VOCAB_SIZE, byte_level_tokenizer
from triptych.v1 import engine_pb2
from triptych_engine import load as load_module
from triptych_engine import steps as steps_module
from triptych_engine.core import EngineCore
from triptych_engine.executor import simulated as simulated_module
from triptych_engine.executor.simulated import SimulatedCosts, SimulatedEngine, SimulatedExecutor
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import Request, SamplingParams
from triptych_engine.scheduling.scheduler import Scheduler
from triptych_engine.scheduling.step_costs import StepCosts
from triptych_engine.settings import EngineSettings

from benchmarks.simulation.engine import VirtualEngine, new_scheduler
from benchmarks.simulation.setup import Setup
from benchmarks.simulation.timeline import Timeline

COSTS = SimulatedCosts(StepCosts(0.01, 0.001, 0.0005))


class HostClock:
    """What the real step loop takes for the time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def module(self) -> SimpleNamespace:
        return SimpleNamespace(perf_counter=lambda: self.now_s, monotonic=lambda: self.now_s, sleep=self.sleep)


def arrivals(count: int) -> list[tuple[float, list[int], int]]:
    """(time, prompt, tokens of the answer): many begin alike, and together they need more blocks than there are."""
    rng, made, now_s = random.Random(1), [], 0.0
    beginnings = [rng.choices(range(1000, 40000), k=24) for _ in range(3)]
    for _ in range(count):
        now_s += rng.expovariate(12)
        prompt = rng.choice(beginnings) + rng.choices(range(1000, 40000), k=rng.randint(1, 40))
        made.append((now_s, prompt, rng.randint(4, 40)))
    return made


def counts_of(scheduler: Scheduler, num_evictions: int, seconds: float, cached: dict[str, int]) -> dict[str, Any]:
    cache = scheduler.kv_cache
    return {
        "queries": cache.prefix_cache_queries,
        "hits": cache.prefix_cache_hits,
        "cached": cached,
        "evictions": num_evictions,
        "preemptions": scheduler.num_preemptions,
        "seconds": round(seconds, 6),
    }


def in_the_real_loop(setup: Setup, settings: EngineSettings, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    host = HostClock()
    for module in (simulated_module, steps_module, load_module):
        monkeypatch.setattr(module, "time", host.module())
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    costs = asdict(setup.costs)
    costs |= costs.pop("steps")
    executor = SimulatedExecutor(SimulatedEngine(**costs, num_blocks=setup.num_blocks), folder, VOCAB_SIZE, settings)
    executor._rng = random.Random("None 0")  # as the first engine of a simulation
    executor.load()
    scheduler, evicted, cached = new_scheduler(setup, settings), list[bytes](), dict[str, int]()

    def publish(step: int, outputs: Any, load: Any) -> None:
        cached.update({one.request_id: one.usage[2] for one in outputs if one.usage is not None})

    core = EngineCore(scheduler, executor, publish)
    core.on_blocks = lambda version, added, removed: evicted.extend(removed)
    scheduler.kv_cache.pool.watch()
    waiting = list(enumerate(arrivals(80)))
    while waiting or scheduler.has_work:
        if not scheduler.has_work:
            host.now_s = max(host.now_s, waiting[0][1][0])
        while waiting and waiting[0][1][0] <= host.now_s:
            number, (_, prompt, max_tokens) = waiting.pop(0)
            scheduler.add(Request(str(number), prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0)))
        core.step()
    monkeypatch.undo()
    return counts_of(scheduler, len(evicted), host.now_s, cached)


def in_the_simulation(setup: Setup, settings: EngineSettings) -> dict[str, Any]:
    timeline, cached, ends = Timeline(), dict[str, int](), [0.0]
    engine = VirtualEngine(timeline, setup, 0, settings)

    class Watcher:
        is_due = False

        def publish(self, outputs: list[SequenceOutput], load: Any, blocks: Any) -> None:
            cached.update({one.request_id: one.usage[2] for one in outputs if one.usage is not None})
            ends.append(timeline.now_s)

        def notice(self, load: Any) -> None:
            raise AssertionError("there is nobody else")

    watcher = Watcher()
    engine.watchers.append(watcher)
    for number, (at_s, prompt, max_tokens) in enumerate(arrivals(80)):
        message = engine_pb2.EngineRequest(request_id=str(number), prompt_token_ids=prompt)
        message.sampling.max_tokens, message.sampling.temperature = max_tokens, 0
        timeline.at(at_s, engine.submit, engine.life, watcher, message)
    timeline.run()
    engine.check_is_empty()
    return counts_of(engine.scheduler, engine.num_evictions, ends[-1], cached)


CURVE = ((1, 0.01), (8, 0.012), (64, 0.04))


@pytest.mark.parametrize(
    "more", [{}, {"context_s": 2e-5, "pair_s": 1e-5}, {"curve": CURVE, "sequence_s": 1e-3}, {"step_noise": 0.3}]
)
def test_the_real_step_loop_and_the_simulation_do_the_same(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EngineSettings(block_size=4, max_num_seqs=16, max_num_batched_tokens=64, prompt_lookup=False)
    setup = Setup(replace(COSTS, **more), num_blocks=60, num_engines=1)
    real = in_the_real_loop(setup, settings, tmp_path, monkeypatch)
    assert real["preemptions"] > 5
    assert real["evictions"] > 100
    assert 0.1 < real["hits"] / real["queries"] < 0.9
    assert in_the_simulation(setup, settings) == real
