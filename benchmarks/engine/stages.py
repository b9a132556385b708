"""Where the time of an engine step goes: a clock for its stages, and what it is put around."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import nn
from triptych_engine.core import EngineCore
from triptych_engine.runner.cpu.kernels import load_kernels
from triptych_engine.runner.cpu.linear.layers import PackedLinear
from triptych_engine.runner.fusion.decoder import Decoder
from triptych_engine.runner.fusion.modules import LinearPart
from triptych_engine.runner.model_runner import ModelRunner
from triptych_engine.scheduling.scheduler import Scheduler

SCHEDULE, INPUTS, EMBEDDING, ATTENTION, LINEAR = "schedule", "gather inputs", "embedding", "attention", "linear layers"
OTHER, HEAD, SAMPLING, UPDATE, PUBLISH = "norm, rope, activation", "output head", "sampling", "update", "publish"
#: In the order of a step.
STAGES = (SCHEDULE, INPUTS, EMBEDDING, ATTENTION, LINEAR, OTHER, HEAD, SAMPLING, UPDATE, PUBLISH)


class StageClock:
    """Wall time per stage. A stage within another stops the other's time for as long as it runs.

    It stands still until `is_on`, and costs next to nothing then.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.ns: defaultdict[str, int] = defaultdict(int)
        self._running: list[str] = []
        self._since_ns = 0

    def enter(self, stage: str) -> None:
        if self.is_on:
            self._settle()
            self._running.append(stage)

    def leave(self) -> None:
        if self.is_on:
            self._settle()
            self._running.pop()

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        """Time an object's method, in place."""
        method: Callable = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.enter(stage)
            try:
                return method(*args, **kwargs)
            finally:
                self.leave()

        setattr(owner, name, timed)

    def hook(self, module: nn.Module, stage: str) -> None:
        """Time a module's forward pass."""
        module.register_forward_pre_hook(lambda *_: self.enter(stage))
        module.register_forward_hook(lambda *_: self.leave())

    def _settle(self) -> None:
        now_ns = time.perf_counter_ns()
        if self._running:
            self.ns[self._running[-1]] += now_ns - self._since_ns
        self._since_ns = now_ns


class TimedSteps:
    """An engine's steps, with or without a clock around their stages.

    What `EngineCore.step` does beyond its stages counts as update (on a device that computes by itself also the wait for it), what
    the runner does as gathering inputs, what the model does as norm, rope, activation: there it is also torch's and Python's own
    work between the parts. Where a decoder layer or the whole model is one call of a kernel, the kernel itself says what its parts
    took (csrc/stage_clock.h). For CPUs: where kernels are only launched, a clock around them tells nothing.
    """

    def __init__(self, core: EngineCore, scheduler: Scheduler, runner: ModelRunner) -> None:
        self._core = core
        self._clock = clock = StageClock()
        self._kernels = load_kernels()
        self._kernel_ns = np.zeros(5, np.int64)  # products, attention, the rest, embedding, output head
        clock.wrap(core, "step", UPDATE)
        clock.wrap(core, "_publish", PUBLISH)
        clock.wrap(scheduler, "schedule", SCHEDULE)
        clock.wrap(runner, "forward", INPUTS)
        clock.wrap(runner._backend, "forward", ATTENTION)
        clock.wrap(runner, "sample", SAMPLING)
        model, decoder = runner._model.model, runner._model.decoder
        head = model.get_output_embeddings()
        clock.wrap(runner._model, "forward", OTHER)
        if not (isinstance(decoder, Decoder) and decoder.is_one_call):
            clock.hook(model.get_input_embeddings(), EMBEDDING)
            clock.hook(head, HEAD)
        inside_head = set(head.modules())
        for module in model.modules():
            if isinstance(module, (PackedLinear, LinearPart, nn.Linear)) and module not in inside_head:
                clock.hook(module, LINEAR)

    def plain(self) -> float:
        """Run a step; returns its milliseconds."""
        started_s = time.perf_counter()
        self._core.step()
        return (time.perf_counter() - started_s) * 1e3

    def by_stage(self) -> tuple[float, dict[str, float]]:
        """Run a step with the clocks on; returns its milliseconds, and those of each of `STAGES`."""
        clock = self._clock
        clock.ns.clear()
        self._kernel_ns[:] = 0
        with self._clocks_on():
            step_ms = self.plain()
        for stage, ns in zip((LINEAR, ATTENTION, OTHER, EMBEDDING, HEAD), self._kernel_ns.tolist(), strict=True):
            if stage != OTHER:
                clock.ns[stage] += ns
                clock.ns[OTHER] -= ns
        return step_ms, {stage: clock.ns[stage] / 1e6 for stage in STAGES}

    @contextmanager
    def _clocks_on(self) -> Iterator[None]:
        self._clock.is_on = True
        if self._kernels is not None:
            self._kernels.stage_ns = self._kernel_ns.ctypes.data
        try:
            yield
        finally:
            self._clock.is_on = False
            if self._kernels is not None:
                self._kernels.stage_ns = None
