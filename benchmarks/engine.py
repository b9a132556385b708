"""The engine's parts, put together as triptych_engine.service does, for benchmarks that run them without services around."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych_common.host.cores import bear_company
from triptych_common.model import store as model_store

bear_company()  # as the engine does before torch is imported

from triptych_engine.executor.in_process import InProcessExecutor  # noqa: E402
from triptych_engine.runner.cpu.attention import CpuAttention  # noqa: E402
from triptych_engine.scheduling.scheduler import Scheduler  # noqa: E402
from triptych_engine.service import make_scheduler, runner_config  # noqa: E402
from triptych_engine.settings import EngineSettings  # noqa: E402


@dataclass(frozen=True)
class LoadedEngine:
    """Executor and scheduler; an EngineCore joins the two."""

    path: Path
    scheduler: Scheduler
    executor: InProcessExecutor


def load_engine(
    settings: EngineSettings, on_device_thread: Callable[[Callable[[], Any]], Any] = lambda work: work()
) -> LoadedEngine:
    """Load the model and warm it up.

    Args:
        on_device_thread: runs something on the thread that will run the step loop, and returns what it returned.
    """
    path = model_store.resolve_model(settings.model, model_store.WEIGHT_PATTERNS)
    model = model_store.model_info(path, model_store.served_name(settings.model), settings.max_model_len)
    config = runner_config(settings, model, path)
    executor = InProcessExecutor(config)
    loaded = on_device_thread(executor.load)
    if isinstance(executor.runner._backend, CpuAttention):
        executor.runner._backend.wait_for_prefault()  # as an engine is that has run for some seconds
    return LoadedEngine(Path(path), make_scheduler(settings, config, loaded), executor)
