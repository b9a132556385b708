"""Pools texts through the real scheduler, executor and runner, without threads or gRPC."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from triptych_common.model.pooling import TaskName, served_model
from triptych_engine.assembly import make_scheduler
from triptych_engine.core import EngineCore
from triptych_engine.executor.in_process import InProcessExecutor
from triptych_engine.executor.multiproc import MultiprocExecutor
from triptych_engine.executor.protocol import Executor
from triptych_engine.executor.worker import WorkerConfig, executor_of_worker
from triptych_engine.runner.config import runner_config
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import PoolingParams, Request, SamplingParams
from triptych_engine.settings import EngineSettings

from support.drivers.engine import IN_A_WORKER


class PoolingDriver:
    """A loaded pooling model.

    Args:
        options: settings of the engine.
    """

    def __init__(self, path: Path, task: TaskName = "auto", **options: object) -> None:
        settings = EngineSettings(model=str(path), task=task, **{"kv_cache_memory": 1 << 22, "dtype": "float32", **options})  # type: ignore[arg-type]
        self.info, self.pooling = served_model(path, "test", settings.max_model_len, task)
        config = runner_config(settings, self.info, path, self.pooling)
        self.executor: Executor = InProcessExecutor(config)
        if IN_A_WORKER:
            worker = WorkerConfig(partial(executor_of_worker, settings, self.info, path, self.pooling, 0, None))
            self.executor = MultiprocExecutor(worker)
            weakref.finalize(self, self.executor.close)
        loaded = self.executor.load()
        self.scheduler = make_scheduler(settings, loaded, self.info.max_model_len, generates=False)

    def run(self, prompts: Sequence[list[int]], params: PoolingParams | Sequence[PoolingParams] | None = None) -> list[np.ndarray]:
        """The results of prompts that arrive together."""
        outputs: list[SequenceOutput] = []
        core = EngineCore(self.scheduler, self.executor, lambda step, some, load: outputs.extend(some))
        each = [params or PoolingParams()] * len(prompts) if isinstance(params, PoolingParams) or params is None else params
        for index, (prompt, one) in enumerate(zip(prompts, each, strict=True)):
            self.scheduler.add(Request(str(index), list(prompt), SamplingParams(max_tokens=0), pooling=one))
        while self.scheduler.has_work:
            core.step()
            self.scheduler.check_integrity()
        pooled = {output.request_id: output.pooled for output in outputs}
        assert all(value is not None for value in pooled.values()), [output.error for output in outputs]
        return [value for index in range(len(prompts)) if (value := pooled[str(index)]) is not None]
