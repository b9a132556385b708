"""Adapters that do not fit, or ask for what is not implemented, are refused with what is wrong. None is half used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.builders.engine import a_tiny_llama_config, save_random_model
from support.builders.lora import peft_logits, save_adapter
from support.lora import all_logits, lora_runner
from torch import nn
from triptych.errors import InvalidRequestError, ModelNotFoundError
from triptych_engine.runner.lora.adapter import LoraAdapter, read_adapter
from triptych_engine.runner.lora.directory import LoraDirectory
from triptych_engine.runner.lora.peft_config import PeftConfig
from triptych_engine.runner.lora.targets import LoraTarget

LAYER = "model.layers.0.self_attn.q_proj"
KEY = f"base_model.model.{LAYER}"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("base"), a_tiny_llama_config())


@pytest.fixture
def folder(base: Path, tmp_path: Path) -> Path:
    return save_adapter(base, tmp_path / "an-adapter", 0, ["q_proj", "v_proj"])


def targets_of(base: Path) -> dict[str, LoraTarget]:
    config = json.loads((base / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    size, num_kv_heads = config.get("head_dim") or hidden // heads, config["num_key_value_heads"]
    outputs = {"q_proj": heads * size, "v_proj": num_kv_heads * size}
    names = [(number, name) for number in range(config["num_hidden_layers"]) for name in outputs]
    found = {f"model.layers.{number}.self_attn.{name}": outputs[name] for number, name in names}
    return {name: LoraTarget(name, hidden, size, 0, nn.Identity()) for name, size in found.items()}


def read(base: Path, folder: Path) -> LoraAdapter:
    files = LoraDirectory(folder.parent).files(folder.name)
    return read_adapter(files, targets_of(base), torch.float32)


def configure(folder: Path, **values: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change(folder: Path, how: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    how(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


def test_an_adapter_as_peft_saves_it_is_read(base: Path, folder: Path):
    adapter = read(base, folder)
    assert adapter.name == "an-adapter"
    assert len(adapter.digest) == 64
    assert sum(map(len, adapter.updates.values())) == len(targets_of(base))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora = true"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"modules_to_save": ["lm_head"]}, r'modules_to_save = \["lm_head"\]'),
        ({"fan_in_fan_out": True}, "fan_in_fan_out = true"),
        ({"lora_bias": True}, "lora_bias = true"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"target_parameters": ["experts.down_proj"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"megatron_config": {"a": 1}}, "megatron_config"),
        ({"alora_invocation_tokens": []}, r"alora_invocation_tokens = \[\]"),
        ({"a_key_of_next_year": 0.5}, "a_key_of_next_year = 0.5"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"init_lora_weights": "loftq"}, "init_lora_weights is 'loftq'"),
        ({"r": 0}, r"is 0; it must be in \[1, 512\]"),
        ({"r": 1000}, r"is 1000; it must be in \[1, 512\]"),
        ({"r": 16}, r"lora_A of .* has the shape \[8, 32\]; with rank 16 .* it must be \[16, 32\]"),
        ({"rank_pattern": {"v_proj": 4}}, r"lora_A of .*v_proj has the shape \[8, 32\]; with rank 4"),
        ({"rank_pattern": {"(": 4}}, "cannot be read"),
        ({"rank_pattern": {"(?i)q_proj": 4}}, "cannot be read"),
        ({"r": None}, "cannot be read"),
        ({"r": float("inf")}, "cannot be read"),
        ({"lora_alpha": float("nan")}, "alpha is not finite"),
        ({"alpha_pattern": {"q_proj": float("inf")}}, "alpha is not finite"),
        ({"base_model_name_or_path": "x", "target_modules": ["q_proj", "v_proj"], "peft_type": "y" * 10_000}, "peft_type is 'yyy"),
    ],
    ids=str,
)
def test_a_configuration_that_is_not_implemented_is_refused(base: Path, folder: Path, values: dict[str, Any], told: str):
    configure(folder, **values)
    with pytest.raises(InvalidRequestError, match=told) as raised:
        read(base, folder)
    assert (raised.value.field, raised.value.value) == ("lora", "an-adapter")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (lambda tensors: tensors.pop(f"{KEY}.lora_B.weight"), "only one of lora_A and lora_B"),
        (lambda tensors: tensors.update({f"{KEY}.lora_magnitude_vector": torch.ones(4)}), "magnitude_vector.*is not supported"),
        (lambda tensors: tensors.update({"base_model.model.lm_head.weight": torch.ones(4, 4)}), "lm_head.weight.*is not supported"),
        (lambda tensors: tensors.update({f"{KEY}.lora_A.weight": torch.ones(8, 31)}), r"\[8, 31\].*must be \[8, 32\]"),
        (lambda tensors: tensors.update({f"{KEY}.lora_B.weight": torch.ones(33, 8)}), r"\[33, 8\].*must be \[64, 8\]"),
        (lambda tensors: tensors.update({f"{KEY}.lora_A.weight": torch.ones(8)}), r"\[8\].*must be \[8, 32\]"),
        (
            lambda tensors: tensors.update(
                {"base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight": torch.ones(8, 32),
                 "base_model.model.model.layers.9.self_attn.q_proj.lora_B.weight": torch.ones(32, 8)}
            ),
            "it changes model.layers.9.self_attn.q_proj, which is no linear layer",
        ),
        (lambda tensors: tensors.update({f"{KEY}.lora_A.weight": torch.full((8, 32), torch.nan)}), "not all finite"),
        (lambda tensors: tensors.update({f"{KEY}.lora_A.weight": torch.ones(8, 32, dtype=torch.int8)}), "of a floating point type"),
        (lambda tensors: [tensors.pop(key) for key in list(tensors) if "v_proj" in key], "'v_proj', for which it has no weights"),
        (lambda tensors: tensors.clear(), "has no weights"),
    ],
)  # fmt: skip
def test_weights_of_another_base_or_rank_or_with_other_keys_are_refused(
    base: Path, folder: Path, how: Callable[[dict[str, torch.Tensor]], object], told: str
):
    change(folder, how)
    with pytest.raises(InvalidRequestError, match=told):
        read(base, folder)


def test_a_list_of_modules_may_name_those_of_other_models(base: Path, folder: Path):
    configure(folder, target_modules=["q_proj", "v_proj", "c_attn", "query_key_value"])
    assert read(base, folder).digest


def test_a_configuration_that_is_nested_without_end_is_refused(base: Path, folder: Path):
    (folder / "adapter_config.json").write_text("[" * 100_000)
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        read(base, folder)


def test_errors_tell_no_paths(base: Path, folder: Path):
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.safetensors").mkdir()
    with pytest.raises(InvalidRequestError, match="Is a directory") as raised:
        read(base, folder)
    assert str(folder.parent) not in raised.value.message


def test_a_file_that_is_cut_is_refused(base: Path, folder: Path):
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidRequestError, match="its weights cannot be read"):
        read(base, folder)


def test_pickles_are_not_read(base: Path, folder: Path):
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(InvalidRequestError, match="has no adapter_model"):
        read(base, folder)


@pytest.mark.parametrize("name", ["", ".", "..", "../an-adapter", "an-adapter/../an-adapter", "/etc", "absent", "a\0b", "x" * 200])
def test_a_request_names_adapters_and_no_paths(folder: Path, name: str):
    (folder / "adapter_model.safetensors").touch()
    with pytest.raises(ModelNotFoundError):
        LoraDirectory(folder.parent).files(name)


def test_only_folders_with_a_configuration_are_adapters(folder: Path):
    (folder.parent / "something").mkdir()
    (folder.parent / ".hidden").mkdir()
    (folder.parent / ".hidden" / "adapter_config.json").touch()
    assert LoraDirectory(folder.parent).names() == ["an-adapter"]
    assert LoraDirectory(folder.parent / "absent").names() == []


def test_a_folder_that_may_not_be_read_hides_no_other(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder.parent / "lost-found").mkdir()
    is_file = Path.is_file

    def as_another_user(path: Path) -> bool:
        if path.parent.name == "lost-found":
            raise PermissionError(13, "Permission denied")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", as_another_user)
    assert LoraDirectory(folder.parent).names() == ["an-adapter"]
    with pytest.raises(ModelNotFoundError):
        LoraDirectory(folder.parent).files("lost-found")


@pytest.mark.parametrize(
    "options",
    [
        {"use_rslora": True},
        {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"q_proj": 3}},
        {"rank_pattern": {r"layers\.1\.self_attn\.q_proj": 5}, "alpha_pattern": {".*v_proj": 7}, "use_rslora": True},
        {"layers_to_transform": [1], "lora_dropout": 0.3},
    ],
    ids=str,
)
def test_scales_and_ranks_are_pefts(base: Path, tmp_path: Path, options: dict[str, Any]):
    """As shown by what PEFT computes: the whole difference to the base model."""
    folder = save_adapter(base, tmp_path / "loras" / "one", 0, ["q_proj", "v_proj"], **options)
    runner, prompt = lora_runner(base, tmp_path / "loras"), [5, 17, 3, 80, 41]
    (got,) = all_logits(runner, [prompt], ["one"])
    torch.testing.assert_close(got, peft_logits(base, folder, prompt), atol=1e-4, rtol=1e-4)


def test_equal_configurations_are_equal_bytes():
    one = PeftConfig("a", b'{"peft_type": "LORA", "r": 1, "lora_alpha": 2}')
    assert one.canonical == PeftConfig("b", b'{"lora_alpha":2,"r":1,  "peft_type":"LORA"}').canonical
