"""How long a frontend takes to compare engines, by policy: measured with the real policies on this machine."""

from __future__ import annotations

import statistics
import time

from triptych.v1 import engine_pb2
from triptych_engine.executor.simulated import SimulatedCosts
from triptych_engine.scheduling.step_costs import StepCosts
from triptych_engine.settings import EngineSettings
from triptych_frontend.engines.policy import Routing, demand_of

from benchmarks.simulation.engine import VirtualEngine
from benchmarks.simulation.frontend import VirtualFrontend
from benchmarks.simulation.setup import Setup
from benchmarks.simulation.timeline import Timeline

_POLICIES: tuple[Routing, ...] = ("prefix", "least-load", "round-robin")
_PROMPT_TOKENS, _REPEATS = 600, 30


def choice_costs(num_engines: int) -> dict[str, float]:
    """Seconds per engine to choose among so many, by policy; medians. No engine holds anything of the prompt."""
    timeline, settings = Timeline(), EngineSettings()
    setup = Setup(SimulatedCosts(StepCosts(0.01, 0.001, 0.001)), num_blocks=16, num_engines=num_engines)
    engines = [VirtualEngine(timeline, setup, number, settings) for number in range(num_engines)]
    frontend = VirtualFrontend(timeline, setup, engines)
    costs: dict[str, float] = {}
    for policy in _POLICIES:
        seconds = []
        for number in range(_REPEATS):
            message = engine_pb2.EngineRequest(prompt_token_ids=range(1000 + number, 1000 + number + _PROMPT_TOKENS))
            started_s = time.perf_counter()
            frontend.router.choose(demand_of(message, policy))
            seconds.append(time.perf_counter() - started_s)
        costs[policy] = statistics.median(seconds) / num_engines
    return costs
