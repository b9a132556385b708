"""Recorded decode steps, with a recorder that runs the recorded function again in place of a CUDA graph."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.builders.engine import GREEDY, a_tiny_llama_config, save_random_model
from support.builders.text_families import COMMON
from support.drivers.engine import EngineDriver
from support.fakes.recordable_attention import RecordableTorchAttention
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForImageTextToText, Qwen2VLConfig
from triptych_engine.runner import builder
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.cuda.graphed_decode import CudaRecorder, GraphedDecode, Recording, batch_sizes
from triptych_engine.scheduling.output import NewSequence, SchedulerOutput
from triptych_engine.scheduling.request import Request

CPU = torch.device("cpu")


class RunAgain:
    """Like a graph, a recording reads and writes the tensors that it was recorded with, and calls nothing else."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def record(self, function: Callable[[], torch.Tensor]) -> Recording:
        output = function().clone()
        self.sizes.append(len(output))
        return Recording(output, lambda: output.copy_(function()))


class AddressesAlone(TorchDispatchMode):
    """Like a graph, it keeps nothing alive of what a recorded function reads; it notes what that was."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[StorageWeakRef] = []
        self._made: set[int] = set()

    def record(self, function: Callable[[], torch.Tensor]) -> Recording:
        self._made.clear()
        with self:
            output = function()
        return Recording(output, lambda: None)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        given = [StorageWeakRef(storage) for storage in _storages((args, kwargs))]
        self.read += [storage for storage in given if storage.cdata not in self._made]
        result = func(*args, **(kwargs or {}))
        self._made |= {storage._cdata for storage in _storages(result)} - {storage.cdata for storage in given}
        return result


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and not leaf.is_mkldnn]


class CannotRecord:
    def record(self, function: Callable[[], torch.Tensor]) -> Recording:
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("graphs"), a_tiny_llama_config())


@pytest.fixture
def driver(path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineDriver:
    """Of a runner whose attention can be recorded."""
    monkeypatch.setattr(builder, "choose_backend", lambda *args, **options: RecordableTorchAttention())
    return EngineDriver(path, max_num_seqs=6, max_model_len=64, num_blocks=32)


def record(driver: EngineDriver) -> tuple[GraphedDecode, RunAgain]:
    recorder = RunAgain()
    driver.runner._recorder = recorder
    driver.runner._graphs = driver.runner._record_decode()
    assert driver.runner._graphs is not None
    return driver.runner._graphs, recorder


def requests() -> list[Request]:
    samplings = [
        replace(GREEDY, max_tokens=12),
        replace(GREEDY, max_tokens=9, temperature=1.0, seed=1),
        replace(GREEDY, max_tokens=7, logprobs=2, prompt_logprobs=1),
        replace(GREEDY, max_tokens=14, repetition_penalty=1.4),
        replace(GREEDY, max_tokens=5),
    ]
    return [Request(f"r{i}", [(5 * i + j) % 90 for j in range(3 + 4 * i)], s) for i, s in enumerate(samplings)]


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_replayed_steps_give_the_same_text(driver: EngineDriver, async_scheduling: bool):
    expected = driver.run(driver.scheduler(), requests())
    graphs, _ = record(driver)
    got = driver.run(driver.scheduler(), requests(), arrivals=[0, 0, 1, 3, 4], async_scheduling=async_scheduling)
    assert graphs.num_replays > 8
    assert {key: one.token_ids for key, one in got.items()} == {key: one.token_ids for key, one in expected.items()}
    assert [one.token_id for one in got["r2"].logprobs] == got["r2"].token_ids


@pytest.mark.parametrize("num_seqs", [1, 3, 5, 6])
def test_rows_that_stand_for_nobody_change_nothing(driver: EngineDriver, num_seqs: int):
    """Logits and caches are those of the step that is not padded, bit for bit."""
    runner = driver.runner
    new = [NewSequence(f"r{i}", [7 + i, 9, 11 + i], 3, 0, [2 * i + 1], GREEDY) for i in range(num_seqs)]
    ids = [sequence.request_id for sequence in new]
    backend = runner._backend
    assert isinstance(backend, RecordableTorchAttention)
    results = []
    for graphed in (False, True):
        for k, v in backend._cache.values():
            k.zero_()
            v.zero_()
        if graphed:
            record(driver)
        with torch.inference_mode():
            runner.execute(SchedulerOutput(new=new, num_scheduled_tokens=dict.fromkeys(ids, 3)))
            inputs = runner._batch.gather(SchedulerOutput(num_scheduled_tokens=dict.fromkeys(ids, 1)))
            logits = runner._forward(inputs, inputs.last_tokens, []).clone()
        runner.execute(SchedulerOutput(dropped=ids))
        results.append((logits, [k[: backend.scratch_slot].clone() for k, _ in backend._cache.values()]))
    (logits, keys), (padded_logits, padded_keys) = results
    assert runner._graphs is not None
    assert runner._graphs.num_replays == 1
    torch.testing.assert_close(padded_logits, logits, rtol=1e-6, atol=1e-6)
    for one, other in zip(keys, padded_keys, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-6)


def test_positions_on_several_axes_are_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a model that takes pictures, text and what follows a picture."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    config = Qwen2VLConfig(
        text_config={**COMMON, "rope_parameters": rope},
        vision_config={"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 64},
    )
    save_random_model(tmp_path, config, AutoModelForImageTextToText)
    monkeypatch.setattr(builder, "choose_backend", lambda *args, **options: RecordableTorchAttention())
    driver = EngineDriver(tmp_path, max_num_seqs=4, max_model_len=64, num_blocks=32)
    runner = driver.runner
    assert runner._model.num_position_axes == 3
    graphs, _ = record(driver)
    new = [NewSequence(f"r{i}", [7 + i, 9, 11 + i], 3, 0, [2 * i + 1], GREEDY) for i in range(3)]
    ids = [sequence.request_id for sequence in new]
    runner._update_states(SchedulerOutput(new=new))
    runner._batch._axis_positions[runner._batch.row("r1")] = np.array([[0, 1, 2], [0, 4, 4], [0, 1, 6]])
    logits = []
    with torch.inference_mode():
        runner.execute(SchedulerOutput(num_scheduled_tokens=dict.fromkeys(ids, 3)))
        inputs = runner._batch.gather(SchedulerOutput(num_scheduled_tokens=dict.fromkeys(ids, 1)))
        assert inputs.axis_positions is not None
        for runner._graphs in (None, graphs):
            logits.append(runner._forward(inputs, inputs.last_tokens, []).clone())
    assert graphs.num_replays == 1
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-5, atol=1e-5)


def test_every_size_is_recorded_the_largest_first(driver: EngineDriver):
    _, recorder = record(driver)
    assert recorder.sizes == [6, 4, 2, 1]


def test_a_cache_that_is_taken_anew_is_recorded_anew(driver: EngineDriver):
    graphs, recorder = record(driver)
    driver.runner.free_cache()
    assert not graphs._recorded
    driver.runner.allocate_cache()
    assert recorder.sizes == [6, 4, 2, 1] * 2
    assert driver.run(driver.scheduler(), requests()[:1])["r0"].token_ids


def test_what_a_recording_reads_lives_as_long_as_it(driver: EngineDriver):
    recorder = AddressesAlone()
    driver.runner._recorder = recorder
    graphs = driver.runner._record_decode()
    gc.collect()
    assert recorder.read
    assert not any(storage.expired() for storage in recorder.read)
    assert graphs is not None
    graphs.forget()
    gc.collect()
    assert any(storage.expired() for storage in recorder.read), "the inputs go with it"


def test_a_model_that_cannot_be_recorded_runs_without(driver: EngineDriver, caplog: pytest.LogCaptureFixture):
    driver.runner._recorder = CannotRecord()
    driver.runner.warm_up()
    assert driver.runner._graphs is None
    assert "not permitted when stream is capturing" in caplog.text


class FakeCuda:
    """As much of torch.cuda as a recording takes, with what happened to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mode: int | str = 0
        self.captures: list[int] = []  # runs of the function before each
        self.num_runs = 0
        stream = SimpleNamespace(wait_stream=lambda other: None)
        fakes = {
            "graph_pool_handle": lambda: (0, 1), "Stream": lambda: stream, "current_stream": lambda: stream,
            "stream": lambda one: nullcontext(), "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None), "graph": self._capture,
            "get_sync_debug_mode": lambda: self.mode, "set_sync_debug_mode": lambda mode: setattr(self, "mode", mode),
        }  # fmt: skip
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    def _capture(self, graph: object, pool: object) -> nullcontext[None]:
        self.captures.append(self.num_runs)
        return nullcontext()

    def run(self) -> torch.Tensor:
        self.num_runs += 1
        return torch.ones(1)

    def run_and_wait(self) -> torch.Tensor:
        if self.mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        return self.run()


def test_what_waits_for_the_device_is_found_before_a_capture_begins(monkeypatch: pytest.MonkeyPatch):
    cuda = FakeCuda(monkeypatch)
    with pytest.raises(RuntimeError, match="synchronizing"):
        CudaRecorder().record(cuda.run_and_wait)
    assert (cuda.captures, cuda.mode) == ([], 0)
    CudaRecorder().record(cuda.run)
    assert (cuda.captures, cuda.mode) == ([3], 0)


def test_attention_of_another_kind_is_not_recorded(path: Path):
    runner = build_runner(EngineDriver(path, max_num_seqs=2, max_model_len=64).config, RunAgain())
    runner.warm_up()
    assert runner._graphs is None


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [(1, [1]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (30, [1, 2, 4, 8, 16, 24, 30]), (4096, None)],
)
def test_sizes(max_num_seqs: int, sizes: list[int] | None):
    got = batch_sizes(max_num_seqs)
    assert got == sorted(set(got))
    assert got[-1] == min(max_num_seqs, 256)
    assert sizes is None or got == sizes
