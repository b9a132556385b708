"""The type of a checkpoint is what its weights are, whatever its configuration says; in the shapes that real ones have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from triptych_common.model.dtype import checkpoint_dtype

LLAMA = {"model_type": "llama", "dtype": "bfloat16"}
#: What transformers 4 wrote.
LLAMA_OF_OLD = {"model_type": "llama", "torch_dtype": "float16"}
LLAVA = {"model_type": "llava", "dtype": "bfloat16", "text_config": {"dtype": "float32"}, "vision_config": {"dtype": "float32"}}
PALIGEMMA = {"model_type": "paligemma", "torch_dtype": "bfloat16", "text_config": {"torch_dtype": "float32"}, "vision_config": {}}
#: The whole says nothing.
IDEFICS3 = {"model_type": "idefics3", "text_config": {"torch_dtype": "bfloat16"}, "vision_config": {"torch_dtype": None}}
QWEN_OMNI = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {"dtype": "bfloat16"}}, "talker_config": {}}
SILENT = {"model_type": "gpt2"}


def a_directory(path: Path, config: dict[str, Any], *files: dict[str, torch.Tensor]) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    for index, tensors in enumerate(files):
        save_file(tensors, path / f"model-{index}.safetensors")
    return path


def weights(dtype: torch.dtype, size: int = 64) -> dict[str, torch.Tensor]:
    return {f"{dtype}-{size}.weight": torch.zeros(size, size, dtype=dtype)}


@pytest.mark.parametrize("config", [LLAMA, LLAMA_OF_OLD, LLAVA, PALIGEMMA, IDEFICS3, QWEN_OMNI, SILENT])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_weights_decide(tmp_path: Path, config: dict[str, Any], dtype: torch.dtype) -> None:
    assert checkpoint_dtype(a_directory(tmp_path, config, weights(dtype))) == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([weights(torch.bfloat16), weights(torch.float32, 8)], "bfloat16"),  # norms or a router in float32
        ([weights(torch.bfloat16, 8), weights(torch.float32)], "float32"),
        ([weights(torch.bfloat16) | weights(torch.float32, 32)], "bfloat16"),
        ([weights(torch.float64)], "float32"),
        ([weights(torch.uint8, 256) | weights(torch.bfloat16, 8)], "bfloat16"),  # gpt-oss: blocks of four bits
        ([weights(torch.float8_e4m3fn, 256) | weights(torch.float16, 8)], "float16"),
        ([{"scale": torch.tensor(1.0, dtype=torch.float16)}], "float16"),
    ],
)
def test_most_parameters_decide(tmp_path: Path, files: list[dict[str, torch.Tensor]], expected: str) -> None:
    assert checkpoint_dtype(a_directory(tmp_path, SILENT, *files)) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, "bfloat16"),
        (LLAMA_OF_OLD, "float16"),
        (LLAVA, "bfloat16"),
        (PALIGEMMA, "bfloat16"),
        (IDEFICS3, "bfloat16"),
        (QWEN_OMNI, "bfloat16"),
        (SILENT, "float32"),
        ({"dtype": "auto"}, "float32"),
    ],
)
def test_without_such_files_the_configuration_is_asked(tmp_path: Path, config: dict[str, Any], expected: str) -> None:
    assert checkpoint_dtype(a_directory(tmp_path, config)) == expected


def test_as_many_of_two_types_leave_it_to_the_configuration(tmp_path: Path) -> None:
    files = [weights(torch.float16), weights(torch.bfloat16)]
    assert checkpoint_dtype(a_directory(tmp_path, LLAMA, *files)) == "bfloat16"
    assert checkpoint_dtype(a_directory(tmp_path, LLAMA_OF_OLD, *files)) == "float16"


@pytest.mark.parametrize("stray", ["adapter_model", "model.fp32", "consolidated", "a"])
@pytest.mark.parametrize("is_sharded", [False, True])
def test_only_what_transformers_loads_counts(tmp_path: Path, stray: str, is_sharded: bool) -> None:
    a_directory(tmp_path, LLAMA_OF_OLD)
    name = "model-00001-of-00001.safetensors" if is_sharded else "model.safetensors"
    save_file(weights(torch.bfloat16), tmp_path / name)
    save_file(weights(torch.float32, 256), tmp_path / f"{stray}.safetensors")
    if is_sharded:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name, "b": name}}))
    assert checkpoint_dtype(tmp_path) == "bfloat16"


def with_header(header: str) -> bytes:
    return len(header).to_bytes(8, "little") + header.encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        b"\xff" * 16,
        with_header("not json!"),
        with_header('["x", 2]'),
        with_header('{"a": {"dtype": "F32", "shape": null}}'),
        with_header('{"a": {"dtype": ["F32"], "shape": [2]}}'),
        with_header('{"a": {"dtype": "F32", "shape": [0]}}'),
        with_header("[" * 100_000),
    ],
)
def test_a_broken_file_is_left_to_those_who_load_it(tmp_path: Path, content: bytes) -> None:
    (a_directory(tmp_path, LLAMA) / "model.safetensors").write_bytes(content)
    assert checkpoint_dtype(tmp_path) == "bfloat16"


def test_what_is_no_file_is_left_to_those_who_load_it(tmp_path: Path) -> None:
    a_directory(tmp_path, LLAMA)
    (tmp_path / "a.safetensors").symlink_to(tmp_path / "missing")
    (tmp_path / "b.safetensors").mkdir()
    assert checkpoint_dtype(tmp_path) == "bfloat16"
    (tmp_path / "config.json").write_text("{")
    assert checkpoint_dtype(tmp_path) == "float32"
