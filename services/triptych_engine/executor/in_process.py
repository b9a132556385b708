"""An executor with a single worker, in this process."""

from __future__ import annotations

import gc
from concurrent.futures import Future
from typing import Any

import torch
from triptych.errors import ServiceUnavailableError
from triptych_common.constraints.spec import ConstraintSpec
from triptych_common.host.memory import return_free_memory
from triptych_common.model.pooling import PoolingModel

from triptych_engine.executor.protocol import ExecutorInfo
from triptych_engine.runner.builder import build_encoder_runner, build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.encoder_runner import EncoderRunner
from triptych_engine.runner.launched_step import LaunchedStep, ModelOutput
from triptych_engine.runner.memory import known_size
from triptych_engine.runner.model_runner import ModelRunner
from triptych_engine.runner.verdict_file import VerdictFile
from triptych_engine.runner.verdicts import Verdicts
from triptych_engine.scheduling.output import SchedulerOutput, StepResult


class InProcessExecutor:
    """Implements `Executor` with one `ModelRunner`, or one `EncoderRunner` for a model that needs no KV cache.

    Args:
        config: configuration of the runner that `load` builds.
        runner: a runner that is already loaded; `load` is then not needed.
        verdicts: what another executor has found out about the same model.
        keeps_verdicts: on disk, for the next start on a CPU; and begins with those that are there.
    """

    def __init__(
        self,
        config: RunnerConfig,
        runner: ModelRunner | EncoderRunner | None = None,
        verdicts: Verdicts | None = None,
        *,
        keeps_verdicts: bool = False,
    ) -> None:
        self._config = config
        self._runner = runner
        self._verdicts = Verdicts() if verdicts is None else verdicts
        self._keeps_verdicts = keeps_verdicts and config.device.type == "cpu"
        if isinstance(runner, ModelRunner):
            known_size(runner.size, self._verdicts)
        self._outputs: dict[int, ModelOutput] = {}  # step_id -> output of a step that is not sampled yet
        self._launched: dict[int, LaunchedStep] = {}  # step_id -> a step whose sampling was launched

    @property
    def runner(self) -> ModelRunner | EncoderRunner:
        """The loaded runner. Raises ServiceUnavailableError before `load`, and after `unload`."""
        if self._runner is None:
            raise ServiceUnavailableError("the engine's model is not loaded", retry_after_s=5.0)
        return self._runner

    def load(self) -> ExecutorInfo:
        pooling = self._config.pooling
        if pooling is not None and pooling.is_bidirectional:
            return self._load_encoder(pooling)
        file = VerdictFile(self._config) if self._keeps_verdicts else None
        if file is not None:
            file.read(self._verdicts)
        is_known = "passed" in self._verdicts
        runner = self._runner = build_runner(self._config, verdicts=self._verdicts)
        if file is not None and not is_known:
            file.write(self._verdicts)
        costs = runner.warm_up()
        return ExecutorInfo(
            vocab_size=runner.vocab_size,
            num_blocks=runner.num_blocks,
            num_states=runner.size.num_states,
            num_cross_slots=runner.size.num_cross_slots,
            num_window_blocks=runner.size.num_window_blocks,
            window=runner.window,
            block_size=self._config.block_size,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
            media_traits=runner.media_traits,
            embedding_bytes=runner.embedding_bytes,
            costs=costs if self._config.device.type == "cpu" else None,
            is_asynchronous=self._config.device.type != "cpu",
            takes_drafts=self._config.pooling is None and not runner.size.num_states,  # states cannot be taken back
            takes_loras=runner.loras is not None,
            block_bytes=(runner.block_bytes,),
            kv_layout=runner.kv_layout,
        )

    def _load_encoder(self, pooling: PoolingModel) -> ExecutorInfo:
        runner = self._runner = build_encoder_runner(self._config, pooling)
        runner.warm_up()
        return ExecutorInfo(
            vocab_size=runner.vocab_size,
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
            media_traits=runner.media_traits,
            embedding_bytes=runner.embedding_bytes,
            costs=None,
            is_asynchronous=self._config.device.type != "cpu",
            can_chunk=False,
        )

    def launch(self, scheduled: SchedulerOutput) -> None:
        self._outputs.clear()  # left by a step that failed between its calls
        self._outputs[scheduled.step_id] = self.runner.forward(scheduled)

    def sample(self, step_id: int) -> None:
        self._launched[step_id] = self.runner.sample(self._outputs.pop(step_id))

    def result(self, step_id: int) -> StepResult:
        try:
            return self._launched.pop(step_id).result()
        finally:
            for step in self._launched.values():
                step.sample_rest()

    def compile_constraint(self, spec: ConstraintSpec) -> Future[Any]:
        runner = self.runner
        if isinstance(runner, EncoderRunner):
            raise RuntimeError("an encoder generates nothing to constrain")
        return runner.constraints.compile(spec)

    def load_lora(self, name: str) -> Future[Any]:
        runner = self.runner
        if isinstance(runner, EncoderRunner) or runner.loras is None:
            raise RuntimeError("adapters are refused before they come here")
        return runner.loras.load(name)

    def check_health(self) -> None:
        self.runner.check_device()

    def free_cache(self) -> None:
        if self._runner is not None:
            self._runner.free_cache()

    def unload(self) -> None:
        if self._runner is not None:
            self._runner = None
            gc.collect()
            return_free_memory()
            if self._config.device.type == "cuda":
                torch.cuda.empty_cache()

    def restore(self) -> None:
        if self._runner is not None:
            self._runner.allocate_cache()
        elif (pooling := self._config.pooling) is not None and pooling.is_bidirectional:
            self._runner = build_encoder_runner(self._config, pooling)
        else:
            runner = build_runner(self._config, verdicts=self._verdicts)
            runner.prepare()
            self._runner = runner

    def close(self) -> None:
        """It has started no process."""
