"""A model that is built again in the same process computes the same, without the checks of the first time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.builders.hybrid_families import HYBRIDS
from support.builders.multimodal import build_checkpoint
from triptych_engine.executor.in_process import InProcessExecutor
from triptych_engine.runner import builder
from triptych_engine.runner.builder import build_runner
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.fusion import decoder, layer
from triptych_engine.runner.fusion.layer import FusedDecoderLayer
from triptych_engine.runner.model import loader
from triptych_engine.runner.model_runner import ModelRunner
from triptych_engine.runner.verdicts import Verdicts

TOKEN_IDS = [(7 * i) % 90 for i in range(50)]
CHECKS = [
    (builder, "check_parity"),
    (builder, "check_batch_invariance"),
    (loader, "_reference_logits"),
    (loader, "observe_layers"),
    (decoder, "_find_parts"),
    (layer, "_computes_the_same"),
    (FusedDecoderLayer, "is_whole"),
]


def a_config(path: Path, **options: Any) -> RunnerConfig:
    return RunnerConfig(path, "test", 256, 8, 64, 16, 1 << 20, **options)


MODELS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda folder: save_random_model(folder, a_tiny_llama_config(), dtype=torch.bfloat16),
    "llava": lambda folder: build_checkpoint("llava_siglip", folder),
    "lfm2": lambda folder: save_random_model(folder, HYBRIDS["lfm2"], dtype=torch.bfloat16),
    "qwen3.5": lambda folder: save_random_model(folder, HYBRIDS["qwen3.5-text"], dtype=torch.bfloat16),
    "granite4": lambda folder: save_random_model(folder, HYBRIDS["granite4-dense"], dtype=torch.bfloat16),
}


def kernels_of(runner: ModelRunner) -> list[bool]:
    """Of each fused layer, whether it is a single kernel."""
    return [part.kernel is not None for part in runner._model.model.modules() if isinstance(part, FusedDecoderLayer)]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"dtype": torch.bfloat16},
    {"quantization": "int8"},
    {"quantization": "int4"},
    {"batch_invariant": True},
    {"kv_cache_dtype": torch.bfloat16},
    {"attention": "torch"},
]
#: Random weights of a Qwen3.5 are refused in int4.
CASES = [(kind, options) for kind in MODELS for options in OPTIONS if (kind, options.get("quantization")) != ("qwen3.5", "int4")]


@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_a_model_wakes_as_it_was_without_being_checked_again(
    kind: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config, verdicts = a_config(MODELS[kind](tmp_path), **options), Verdicts()
    runner = build_runner(config, verdicts=verdicts)

    def must_not_run(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a check ran again")

    for owner, name in CHECKS:
        monkeypatch.setattr(owner, name, must_not_run)
    woken = build_runner(config, verdicts=verdicts)
    assert torch.equal(woken.prompt_logits(TOKEN_IDS, num_chunks=2), runner.prompt_logits(TOKEN_IDS, num_chunks=2))
    for what in ("size", "vocab_size", "media_traits"):
        assert getattr(woken, what) == getattr(runner, what)
    assert kernels_of(woken) == kernels_of(runner)
    assert (woken._model.decoder is None) == (runner._model.decoder is None)
    with pytest.raises(AssertionError, match="ran again"):
        build_runner(config)


def test_a_layer_that_failed_its_check_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = save_random_model(tmp_path, a_tiny_llama_config(), dtype=torch.bfloat16)
    config, verdicts = a_config(path), Verdicts()
    with monkeypatch.context() as patched:
        patched.setattr(FusedDecoderLayer, "is_whole", lambda self, *_: self.index != 1)
        first = kernels_of(build_runner(config, verdicts=verdicts))
    woken = build_runner(config, verdicts=verdicts)
    assert kernels_of(woken) == first == [True, False]
    assert woken._model.decoder is None


def test_media_that_were_refused_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = build_checkpoint("llava_siglip", tmp_path)
    verdicts = Verdicts()
    with monkeypatch.context() as patched:
        patched.setattr(builder, "check_media", lambda *_: "no media")
        build_runner(a_config(path), verdicts=verdicts)
    assert build_runner(a_config(path), verdicts=verdicts).media_traits == "no media"
    assert build_runner(a_config(path)).media_traits != "no media"


def test_a_build_that_failed_is_repeated_with_all_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, verdicts = save_random_model(tmp_path, a_tiny_llama_config(), dtype=torch.bfloat16), Verdicts()
    with monkeypatch.context() as patched:
        patched.setattr(ModelRunner, "allocate_cache", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_runner(a_config(path), verdicts=verdicts)
    assert build_runner(a_config(path), verdicts=verdicts)._model.decoder is not None


def test_an_executor_of_a_given_runner_keeps_its_blocks(tmp_path: Path):
    path = save_random_model(tmp_path, a_tiny_llama_config(), dtype=torch.bfloat16)
    runner = build_runner(a_config(path))
    executor = InProcessExecutor(RunnerConfig(path, "test", 256, 8, 64, 16, 1 << 21), runner)
    num_blocks = runner.num_blocks
    executor.unload()
    executor.restore()
    assert executor.runner.num_blocks == num_blocks


def test_what_raises_leaves_no_answer():
    verdicts = Verdicts()
    with pytest.raises(ZeroDivisionError):
        verdicts.of("question", lambda: 1 / 0)
    assert "question" not in verdicts
    assert [verdicts.of("question", lambda answer=answer: answer) for answer in (None, 2)] == [None, None]
