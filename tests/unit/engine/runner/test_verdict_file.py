"""Verdicts that an engine finds on disk: with what they are used, and with what all checks are made again."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.builders.multimodal import build_checkpoint
from triptych_common.model.pooling import PoolingModel
from triptych_engine.executor.in_process import InProcessExecutor
from triptych_engine.runner import builder, verdict_file
from triptych_engine.runner.config import RunnerConfig
from triptych_engine.runner.fusion.layer import FusedDecoderLayer
from triptych_engine.runner.model import loader
from triptych_engine.runner.place import Place
from triptych_engine.runner.verdict_file import VerdictFile
from triptych_engine.runner.verdicts import Verdicts

TOKEN_IDS = [(7 * i) % 90 for i in range(50)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(verdict_file, "cache_dir", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "verdicts"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return save_random_model(tmp_path / "model", a_tiny_llama_config(), dtype=torch.bfloat16)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The checks that run, by name."""
    ran: list[str] = []

    def counted(name: str, check: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: (ran.append(name), check(*args, **kwargs))[1]

    for owner, name in (
        (builder, "check_parity"),
        (builder, "check_cache"),
        (loader, "_reference_logits"),
        (FusedDecoderLayer, "is_whole"),
    ):
        monkeypatch.setattr(owner, name, counted(name, getattr(owner, name)))
    return ran


def a_config(path: Path, **options: Any) -> RunnerConfig:
    return RunnerConfig(path, "test", 256, 8, 64, 16, 1 << 20, **options)


def start(path: Path, **options: Any) -> InProcessExecutor:
    """An executor as an engine's process makes it."""
    executor = InProcessExecutor(a_config(path, **options), keeps_verdicts=True)
    executor.load()
    return executor


def logits_of(executor: InProcessExecutor) -> torch.Tensor:
    return executor.runner.prompt_logits(TOKEN_IDS, num_chunks=2)


@pytest.mark.parametrize("options", [{}, {"dtype": torch.bfloat16}, {"quantization": "int8"}, {"batch_invariant": True}], ids=str)
def test_the_next_start_computes_the_same_without_checks(path: Path, checks: list[str], options: dict[str, Any]) -> None:
    first = start(path, **options)
    assert "check_cache" in checks
    checks.clear()
    second = start(path, **options)
    assert checks == []
    assert torch.equal(logits_of(second), logits_of(first))
    assert (second.runner._model.decoder is None) == (first.runner._model.decoder is None)
    assert second.runner._model.layers == first.runner._model.layers


def test_a_model_with_pictures_takes_them_at_the_next_start(tmp_path: Path, checks: list[str]) -> None:
    path = build_checkpoint("llava_siglip", tmp_path / "model")
    first = start(path)
    checks.clear()
    assert start(path).runner.media_traits == first.runner.media_traits
    assert checks == []


def test_memory_decides_about_blocks_only(path: Path, checks: list[str]) -> None:
    num_blocks = start(path, memory_limit=1 << 33).runner.num_blocks
    checks.clear()
    executor = InProcessExecutor(dataclasses.replace(a_config(path), kv_cache_bytes=1 << 21), keeps_verdicts=True)
    assert executor.load().num_blocks == 2 * num_blocks
    assert checks == []


@pytest.mark.parametrize("what", ["model", "code", "kernels", "library", "processor", "damaged", "another form"])
def test_what_has_changed_is_checked_again(
    what: str, path: Path, cache: Path, checks: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start(path)
    checks.clear()
    (kept,) = cache.iterdir()
    if what == "model":
        os.utime(path / "model.safetensors", ns=(1, 1))
    elif what == "code":
        (tmp_path / "engine").mkdir()
        monkeypatch.setattr(verdict_file.triptych_engine, "__file__", str(tmp_path / "engine" / "__init__.py"))
    elif what == "kernels":
        monkeypatch.setattr(verdict_file, "load_kernels", lambda: None)
    elif what == "library":
        monkeypatch.setattr(verdict_file, "_library", lambda name: iter(["0"]))
    elif what == "processor":
        monkeypatch.setattr(verdict_file, "cpu_features", frozenset)
    elif what == "damaged":
        kept.write_text(kept.read_text()[:-10])
    else:
        kept.write_text(json.dumps(json.loads(kept.read_text()) | {"answers": 7}))
    start(path)
    assert "check_cache" in checks
    assert list(cache.iterdir()) == [kept], "the old answers are replaced"
    checks.clear()
    start(path)
    assert checks == []


def test_every_setting_but_those_of_memory_has_a_file_of_its_own(path: Path) -> None:
    others: dict[str, Any] = {
        "model_path": path / "other",
        "dtype": torch.float32,
        "kv_cache_dtype": torch.float32,
        "device": torch.device("cpu", 0),
        "place": Place(1, 2),
        "pooling": PoolingModel("embed", False, 8),
        "lora_dir": path,
    }
    config, files = a_config(path), []
    for field in dataclasses.fields(RunnerConfig):
        value = getattr(config, field.name)
        if field.name in others:
            value = others[field.name]
        elif isinstance(value, bool):
            value = not value
        elif isinstance(value, str):
            value += "x"
        elif isinstance(value, int) or value is None:
            value = (value or 0) + 1
        changed = dataclasses.replace(config, **{field.name: value})
        assert changed != config
        same = VerdictFile(changed)._path == VerdictFile(config)._path
        assert same == (field.name in verdict_file._MEMORY), field.name
        files.append(field.name)
    assert set(files) >= verdict_file._MEMORY


def test_a_refused_layer_stays_refused(path: Path, checks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What passed the checks of the whole model is what is served."""
    with monkeypatch.context() as patched:
        patched.setattr(FusedDecoderLayer, "is_whole", lambda self, *_: self.index != 1)
        first = start(path)
    checks.clear()
    second = start(path)
    assert checks == []
    assert first.runner._model.decoder is second.runner._model.decoder is None
    assert torch.equal(logits_of(second), logits_of(first))


def test_files_that_change_while_they_are_loaded_leave_nothing(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = builder.check_cache

    def changing(*args: Any) -> None:
        os.utime(path / "config.json", ns=(1, 1))
        check(*args)

    monkeypatch.setattr(builder, "check_cache", changing)
    start(path)
    assert not cache.exists()


def test_a_file_name_that_is_no_text_is_no_reason_to_fail(path: Path, cache: Path) -> None:
    (Path(os.fsdecode(os.fsencode(path) + b"/\xff.txt"))).write_text("")
    start(path)
    assert len(list(cache.iterdir())) == 1


def test_after_refused_media_all_is_checked_again(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build_checkpoint("llava_siglip", tmp_path / "model")
    with monkeypatch.context() as patched:
        patched.setattr(builder, "check_media", lambda *_: "no media")
        assert start(path).runner.media_traits == "no media"
    assert not cache.exists()
    assert start(path).runner.media_traits != "no media"


def test_a_model_that_fails_a_check_leaves_nothing(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "check_cache", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        start(path)
    assert not cache.exists()


def test_a_directory_that_cannot_be_written_is_no_reason_to_fail(
    path: Path, cache: Path, checks: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the directory would be")
    caplog.set_level("INFO")
    start(path)
    assert "the next start makes the same checks: cannot write" in caplog.text


def test_an_executor_keeps_nothing_unless_it_is_asked_to(path: Path, cache: Path) -> None:
    InProcessExecutor(a_config(path), verdicts=Verdicts()).load()
    assert not cache.exists()
