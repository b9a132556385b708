"""Several models on one command line: their names, their options, their ports, their shares of the memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from triptych_cli.errors import CommandError
from triptych_cli.manager.memory import Needs, shares
from triptych_cli.stack.options import ServeOptions, options_of_models
from triptych_cli.stack.plan import FILES_VARIABLE, plan_gateway, plan_model
from triptych_cli.stack.service import port_claims, spec
from triptych_cli.stack.service_flags import ServiceArgs

COMMON = ServeOptions("")


def test_each_model_has_its_name_and_its_options() -> None:
    by_model = {"engines": ["2", "b=3"], "task": ["b=embed"], "max_model_len": ["512"], "quantization": None}
    first, second = options_of_models(["org/a", "b=org/a"], COMMON, by_model)
    assert (first.model, first.group, first.served_model_name, first.number) == ("org/a", "org/a", None, 0)
    assert (second.model, second.group, second.served_model_name, second.number) == ("org/a", "b", "b", 1)
    assert [(one.engines, one.task, one.max_model_len, one.quantization) for one in (first, second)] == [
        (2, None, 512, None), (3, "embed", 512, None)
    ]  # fmt: skip


def test_a_single_model_is_in_no_group() -> None:
    (only,) = options_of_models(["name=org/a"], COMMON, {"engines": ["2"]})
    assert (only.group, only.served_model_name, only.engines) == ("", "name", 2)


def test_a_directory_with_an_equals_sign_is_no_name(tmp_path: Path) -> None:
    folder = tmp_path / "a=b"
    folder.mkdir()
    (only,) = options_of_models([str(folder)], COMMON, {})
    assert (only.model, only.served_model_name) == (str(folder), None)


@pytest.mark.parametrize(
    ("models", "by_model", "message"),
    [
        (["a/b", "a/b"], {}, "two models have the name a/b; write NAME=MODEL for one of them"),
        (["a/b"], {"engines": ["c=2"]}, "--engines c=2: no model 'c' here; there are: a/b"),
        (["a/b"], {"engines": ["65"]}, "--engines: '65' is not a number from 1 to 64"),
        (["a/b"], {"engines": ["two"]}, "--engines: 'two' is not a number from 1 to 64"),
        (["a/b", "c=a/b"], {"task": ["c=sing"]}, "--task: 'sing' is not one of auto, generate, embed"),
        ([f"m{number}=a/b" for number in range(17)], {}, "17 models are more than 16"),
    ],
)
def test_what_makes_no_sense_is_named(models: list[str], by_model: dict[str, list[str]], message: str) -> None:
    with pytest.raises(CommandError) as caught:
        options_of_models(models, COMMON, by_model)
    assert str(caught.value) == message


def test_one_served_name_does_not_fit_two_models() -> None:
    with pytest.raises(CommandError, match="--served-model-name is for one model"):
        options_of_models(["a/b", "c/d"], ServeOptions("", served_model_name="x"), {})


def test_models_have_services_and_ports_of_their_own() -> None:
    options = options_of_models(["a/b", "c=a/b"], COMMON, {"engines": ["c=2"]})
    services = [service for one in options for service in plan_model(one, {}, with_encoder=True)]
    assert [service.name for service in services] == [
        "a/b/encoder", "a/b/engine", "a/b/frontend", "c/encoder", "c/engine-1", "c/engine-2", "c/frontend"
    ]  # fmt: skip
    gateway = plan_gateway(options[0], {}, services)
    assert "--frontend-addresses 127.0.0.1:50054,127.0.0.1:50254" in " ".join(gateway.args)
    assert "--engine-addresses 127.0.0.1:50253,127.0.0.1:50263" in " ".join(services[-1].args)
    assert "--served-model-name c" in " ".join(services[-1].args)
    ports = [claim.port for claim in port_claims([*services, gateway])]
    assert len(set(ports)) == len(ports)
    # A model that fails leaves the others alone. One that is the only one ends the suite.
    assert not any(spec(service).is_essential for service in services)
    assert spec(gateway).is_essential


def files_dir(options: ServeOptions, given: ServiceArgs | None = None) -> Path | None:
    settings = plan_gateway(options, given or {}, plan_model(options, {}, with_encoder=False)).settings
    return settings.files_dir  # type: ignore[attr-defined,no-any-return]


def test_files_are_kept_in_the_cache_where_that_is_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILES_VARIABLE, raising=False)
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    options = ServeOptions("a/b")
    assert files_dir(options) == tmp_path / "cache" / "files"
    assert not (tmp_path / "cache").exists()
    assert files_dir(options, {"gateway": ["--files-dir", "/elsewhere"]}) == Path("/elsewhere")
    # A program that runs `LLM` is no place for batches.
    assert files_dir(ServeOptions("a/b", parent_pid=1)) is None
    monkeypatch.setenv(FILES_VARIABLE, "/by/variable")
    assert files_dir(options) == Path("/by/variable")
    monkeypatch.setenv(FILES_VARIABLE, "")
    assert files_dir(options) is None
    monkeypatch.delenv(FILES_VARIABLE)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "file" / "cache"))
    assert files_dir(options) is None


def test_a_share_of_the_memory_is_all_for_its_model() -> None:
    engine, *_ = plan_model(ServeOptions("a/b", memory=4 << 30), {}, with_encoder=False)
    assert "--memory-limit 3758096384 --memory-utilization 0.9" in " ".join(engine.args)  # without a gateway and a frontend
    given = {"engine": ["--memory-utilization", "0.5"]}
    engine, *_ = plan_model(ServeOptions("a/b", memory=4 << 30), given, with_encoder=False)
    assert " ".join(engine.args).count("--memory-utilization") == 1


def test_models_share_what_is_left_or_take_turns_with_what_they_need() -> None:
    needs = [Needs(1 << 30, 3 << 30), Needs(1 << 30, 5 << 30)]
    assert shares((10 << 30) + (256 << 20), needs) == [4 << 30, 6 << 30]
    assert shares(6 << 30, needs) == [3 << 30, 5 << 30]


@pytest.mark.parametrize(
    ("dtype", "computes_bf16", "factor"), [("bfloat16", True, 1), ("bfloat16", False, 2), ("float32", False, 1)]
)
def test_weights_take_more_where_the_cpu_widens_them(
    dtype: str, computes_bf16: bool, factor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triptych_cli.manager.memory.computes_bfloat16", lambda: computes_bf16)
    monkeypatch.setattr("triptych_cli.manager.memory.num_nvidia_gpus", lambda: 0)
    (tmp_path / "config.json").write_text(json.dumps({"dtype": dtype}))
    (tmp_path / "model.safetensors").write_bytes(bytes(4000))
    needs = Needs.of(tmp_path, ServeOptions("a/b"), {"engine": ["--kv-cache-memory", "1G"]}, with_encoder=False)
    assert needs.least - needs.asleep == 5000 * factor + (2 << 30)
