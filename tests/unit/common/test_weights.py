"""Which files hold the weights, whether they are whole, and what identifies them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.builders.pooling import a_classifier, an_embedder
from support.drivers.pooling import PoolingDriver
from triptych.errors import StartupError
from triptych_common.model.store import model_info
from triptych_common.model.weights import check_weight_files, read_header, weights_fingerprint
from triptych_engine.runner.model.loader import load_model

NAMES = ("model-1.safetensors", "model-2.safetensors")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A model in two files."""
    save_random_model(tmp_path, a_tiny_llama_config())
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(weights)
    parts = [names[: len(names) // 2], names[len(names) // 2 :]]
    for file, part in zip(NAMES, parts, strict=True):
        save_file({name: weights[name] for name in part}, tmp_path / file, {"format": "pt"})
    index = {name: file for file, part in zip(NAMES, parts, strict=True) for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return tmp_path


def load(path: Path) -> None:
    load_model(path, "tiny", dtype=None, device=torch.device("cpu"), max_model_len=64)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def cut_header(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:40])


def flip_length(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[5] ^= 0x10
    file.write_bytes(content)


def in_header(old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        content = file.read_bytes()
        assert old in content[:1000]
        file.write_bytes(content.replace(old, new, 1))

    return change


def nonsense(file: Path) -> None:
    header = b'{"a": [1, 2]}'
    file.write_bytes(struct.pack("<Q", len(header)) + header)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(b""), "is damaged: it is empty"),
        (lambda file: file.write_bytes(b"abc"), "is damaged: it has 3 bytes"),
        (lambda file: file.unlink(), r"is missing, though model\.safetensors\.index\.json names it"),
        (cut, r"is damaged: it has [\d,]+ bytes, and [\d,]+ by its header"),
        (cut_header, "is damaged: it ends within its header, after 40 bytes"),
        (flip_length, "is damaged: it does not begin with the size of a header"),
        (
            lambda file: file.write_bytes(b"version https://git-lfs\n"),
            "is damaged: it does not begin with the size",
        ),
        (in_header(b'"dtype":"F32"', b'"dtype":"G32"'), "has the unknown type 'G32'"),
        (in_header(b'"dtype":"F32"', b'"dtype":"F16"'), "does not fit its shape"),
        (in_header(b'"dtype"', b'"ctype"'), "its header does not describe tensors"),
        (in_header(b'":{"dtype"', b'";{"dtype"'), "its header is not valid JSON"),
        (nonsense, "its header does not describe tensors"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(damage: Callable[[Path], None], message: str, sharded: Path) -> None:
    damage(sharded / NAMES[1])
    with pytest.raises(StartupError, match=message) as caught:
        load(sharded)
    assert str(sharded / NAMES[1]) in str(caught.value)
    assert "\n" not in str(caught.value)
    # Services without torch meet the file too, but one that is missing may come later.
    if (sharded / NAMES[1]).is_file():
        with pytest.raises(StartupError, match=message):
            model_info(sharded, "tiny")


def test_a_damaged_name_of_a_tensor_is_a_missing_weight(sharded: Path) -> None:
    in_header(b'norm.weight"', b'nurm.weight"')(sharded / NAMES[1])
    with pytest.raises(StartupError, match=r"lacks 1 weights, e\.g\. model\..*norm\.weight") as caught:
        load(sharded)
    assert str(sharded) in str(caught.value)


def test_weights_of_another_shape_are_told(tmp_path: Path) -> None:
    save_random_model(tmp_path, a_tiny_llama_config())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": config["intermediate_size"] * 2}))
    with pytest.raises(
        StartupError, match=r"the weights in .* do not fit its config\.json: model.layers.0.mlp.\w+.weight has the shape"
    ):
        load(tmp_path)


@pytest.mark.parametrize("lost", ["encoder.layer.1.output.dense.weight", "classifier.bias"])
def test_an_encoder_without_some_weights_is_refused(lost: str, tmp_path: Path) -> None:
    path = a_classifier(tmp_path, "bert") if "classifier" in lost else an_embedder(tmp_path, "bert")
    PoolingDriver(path)
    weights = load_file(path / "model.safetensors")
    save_file(
        {name: weight for name, weight in weights.items() if not name.endswith(lost)}, path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(StartupError, match=rf"lacks 1 weights, e\.g\. .*{lost}; fetch the model again"):
        PoolingDriver(path)


def test_a_damaged_index_is_named(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text("{")
    with pytest.raises(StartupError, match=r"model\.safetensors\.index\.json is damaged"):
        check_weight_files(sharded)


@pytest.mark.parametrize(("name", "message"), [("m.Q4_K_M.gguf", r"m\.Q4_K_M\.gguf is damaged"), ("README.md", "no weights")])
def test_a_directory_without_weights_is_told(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(StartupError, match=message):
        check_weight_files(tmp_path)


def test_the_fingerprint_is_of_the_content(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("hub")
    for file in sharded.iterdir():
        blob = elsewhere / f"blob-{file.name}"
        blob.write_bytes(file.read_bytes())
        (elsewhere / file.name).symlink_to(blob)
    assert weights_fingerprint(sharded) == weights_fingerprint(elsewhere) != ""
    assert model_info(sharded, "m").weights_fingerprint == weights_fingerprint(sharded)


@pytest.mark.parametrize("number", [0, 3, 5, 11])
def test_training_one_tensor_changes_the_fingerprint(number: int, tmp_path: Path) -> None:
    save_random_model(tmp_path, a_tiny_llama_config())
    before = weights_fingerprint(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = sorted(weights)[number]
    save_file({**weights, name: weights[name] * 1.001}, tmp_path / "model.safetensors", {"format": "pt"})
    info = model_info(tmp_path, "m")
    assert info.weights_fingerprint != before


def test_without_all_files_there_is_no_fingerprint(sharded: Path) -> None:
    (sharded / NAMES[0]).unlink()
    assert weights_fingerprint(sharded) == ""
    assert model_info(sharded, "m").fingerprint


def test_a_large_checkpoint_is_sampled(tmp_path: Path) -> None:
    """30 GB of zeros in a sparse file: reading all of it would take a minute."""
    entries, end = {}, 0
    for number in range(30):
        entries[f"layer.{number}"] = {"dtype": "BF16", "shape": [1 << 29], "data_offsets": [end, end + (1 << 30)]}
        end += 1 << 30
    header = json.dumps(entries).encode()
    file = tmp_path / "model.safetensors"
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + end)
    assert len(read_header(file)) == 30
    before = weights_fingerprint(tmp_path)
    with file.open("r+b") as stream:
        stream.seek(8 + len(header) + (17 << 30) + (1 << 29))
        stream.write(b"\x01")
    assert weights_fingerprint(tmp_path) != before
