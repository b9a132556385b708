"""The engine's parts, put together as triptych_engine.service does, for benchmarks that run them without services around."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triptych_common.host.torch_env import set_torch_environment
from triptych_common.model import store as model_store

set_torch_environment()  # as the engine does before torch is imported

from triptych_cli.load.figures import Answer  # noqa: E402
from triptych_engine.assembly import make_scheduler  # noqa: E402
from triptych_engine.core import EngineCore, new_device_thread  # noqa: E402
from triptych_engine.executor.in_process import InProcessExecutor  # noqa: E402
from triptych_engine.load import Load  # noqa: E402
from triptych_engine.runner.config import runner_config  # noqa: E402
from triptych_engine.runner.cpu.attention import CpuAttention  # noqa: E402
from triptych_engine.runner.model_runner import ModelRunner  # noqa: E402
from triptych_engine.scheduling.output import SequenceOutput  # noqa: E402
from triptych_engine.scheduling.request import Request, SamplingParams  # noqa: E402
from triptych_engine.scheduling.scheduler import Scheduler  # noqa: E402
from triptych_engine.settings import EngineSettings  # noqa: E402

_NUM_WARM_UP = 4


@dataclass(frozen=True)
class LoadedEngine:
    """Executor and scheduler; an EngineCore joins the two."""

    path: Path
    scheduler: Scheduler
    executor: InProcessExecutor

    @property
    def runner(self) -> ModelRunner:
        runner = self.executor.runner
        assert isinstance(runner, ModelRunner), "these benchmarks measure models that generate text"
        return runner


def load_engine(settings: EngineSettings) -> LoadedEngine:
    """Load the model and warm it up. To be called on the thread that will run the step loop."""
    path = model_store.resolve_model(settings.model, model_store.WEIGHT_PATTERNS)
    model = model_store.model_info(path, model_store.served_name(settings.model), settings.max_model_len)
    config = runner_config(settings, model, path)
    executor = InProcessExecutor(config)
    loaded = executor.load()
    engine = LoadedEngine(Path(path), make_scheduler(settings, loaded, model.max_model_len), executor)
    if isinstance(engine.runner._backend, CpuAttention):
        engine.runner._backend.wait_for_prefault()  # as an engine is that has run for some seconds
    return engine


def median_step_ms(core: EngineCore, scheduler: Scheduler, requests: Sequence[Request], num_steps: int) -> float:
    """The median time of a decoding step of these requests, on this thread. They are aborted in the end."""
    for request in requests:
        scheduler.add(request)
    while any(not request.num_output_tokens for request in requests):
        core.step()
    for _ in range(_NUM_WARM_UP):
        core.step()
    times = []
    for _ in range(num_steps):
        started_s = time.perf_counter()
        core.step()
        times.append(1e3 * (time.perf_counter() - started_s))
    scheduler.abort(scheduler.live_request_ids)
    finish(core, scheduler)
    return statistics.median(times)


def finish(core: EngineCore, scheduler: Scheduler) -> None:
    """Run steps until nothing is left."""
    while core.num_in_flight or scheduler.has_work:
        core.step()


class LocalEngine:
    """An engine's step loop on a thread of its own, to be put under a closed loop of requests. Ends with `stop`."""

    def __init__(self, settings: EngineSettings) -> None:
        device_thread = new_device_thread()
        loaded = device_thread.submit(load_engine, settings).result()
        self.path, self.vocab_size = loaded.path, loaded.runner.vocab_size
        self._load: _ClosedLoop | None = None
        on_gpu = loaded.runner.config.device.type != "cpu"
        self._core = EngineCore(
            loaded.scheduler,
            loaded.executor,
            self._on_outputs,
            device_thread=device_thread,
            async_scheduling=on_gpu if settings.async_scheduling is None else settings.async_scheduling,
        )
        self._core.start()

    def run(
        self, prompts: Sequence[list[int]], concurrency: int, max_tokens: int, timeout_s: float
    ) -> tuple[list[Answer], list[str]]:
        """Compute each prompt once, so many at a time; returns the answers, and why others failed. Raises TimeoutError."""
        self._load = _ClosedLoop(self._core, prompts, max_tokens)
        return self._load.run(concurrency, timeout_s)

    def stop(self) -> None:
        self._core.stop()

    def _on_outputs(self, step: int, outputs: Sequence[SequenceOutput], load: Load) -> None:
        if self._load is not None:
            self._load.on_outputs(outputs)


class _ClosedLoop:
    """Keeps so many requests in the engine until all prompts are through. Its callback runs on the engine's thread."""

    def __init__(self, core: EngineCore, prompts: Sequence[list[int]], max_tokens: int) -> None:
        self._core = core
        self._waiting = iter(enumerate(prompts))
        self._max_tokens = max_tokens
        self._num_left = len(prompts)
        self._sent_s: dict[str, float] = {}
        self._tokens_s: dict[str, list[float]] = {}
        self._answers: list[Answer] = []
        self._failures: list[str] = []
        self._done = threading.Event()

    def run(self, concurrency: int, timeout_s: float) -> tuple[list[Answer], list[str]]:
        for _ in range(concurrency):
            self._add_next()
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"{self._num_left} requests are not answered after {timeout_s:.0f} s")
        return self._answers, self._failures

    def on_outputs(self, outputs: Sequence[SequenceOutput]) -> None:
        now_s = time.perf_counter()
        for output in outputs:
            if output.token_ids:
                self._tokens_s[output.request_id].append(now_s)
            if output.finish_reason is not None:
                self._end(output)
                self._add_next()

    def _add_next(self) -> None:
        index, prompt = next(self._waiting, (0, None))
        if prompt is None:
            return
        request_id = f"{id(self):x}-{index}"
        self._sent_s[request_id], self._tokens_s[request_id] = time.perf_counter(), []
        self._core.add(Request(request_id, prompt, SamplingParams(max_tokens=self._max_tokens, temperature=0.0)))

    def _end(self, output: SequenceOutput) -> None:
        sent_s, tokens_s = self._sent_s.pop(output.request_id), self._tokens_s.pop(output.request_id)
        if output.error is not None or output.usage is None or output.usage[1] != self._max_tokens:
            self._failures.append(f"ended with {output.finish_reason}: {output.error}")
        else:
            self._answers.append(Answer(sent_s, tokens_s, output.usage[0], output.usage[1]))
        self._num_left -= 1
        if not self._num_left:
            self._done.set()
