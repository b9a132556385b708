"""Which directory a model's name stands for, and what is said where there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from triptych.errors import StartupError
from triptych_common.model.store import BUILTIN_MODELS, builtin_dir, read_json, resolve_model


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))


def test_a_directory_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_fetched_built_in_model_is_in_the_cache() -> None:
    name = "smollm2-135m-instruct"
    directory = builtin_dir(BUILTIN_MODELS[name])
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    assert resolve_model(name) == directory


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("smollm2-135m-instruct", "was not fetched yet; run: triptych fetch smollm2-135m-instruct"),
        (
            "no-such-model",
            r"neither a directory nor a GGUF file nor a built-in name nor a hub id \(org/name\); known built-in names: .*smollm2",
        ),
        ("./nowhere/model", "there is no directory and no GGUF file ./nowhere/model"),
        ("nowhere/model-q4.gguf", "there is no directory and no GGUF file nowhere/model-q4.gguf"),
        ("org/name/more", "neither a directory"),
        ("org/a--b", "cannot get org/a--b from the hub"),
    ],
)
def test_what_is_no_model_is_told(model: str, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        resolve_model(model)


def test_a_directory_without_a_configuration_is_told(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"has no config\.json, so it is not a model directory"):
        resolve_model(str(tmp_path))
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(StartupError, match=re.escape(f"a GGUF file is named itself: {file}")):
        resolve_model(str(tmp_path))


def test_a_hub_that_is_not_asked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(StartupError, match=r"org/model is not in the hub's cache, or not complete, and offline mode is on"):
        resolve_model("org/model")


def test_broken_json_is_told(tmp_path: Path) -> None:
    assert read_json(tmp_path / "missing.json") == {}
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(StartupError, match=r"config\.json is not valid JSON"):
        read_json(tmp_path / "config.json")
