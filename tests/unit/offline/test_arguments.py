"""Arguments of vLLM: honoured, harmless, or refused by name."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from triptych import LLM, BeamSearchParams, GenerationError, SamplingParams, StructuredOutputsParams
from triptych.errors import InvalidRequestError, StartupError
from triptych.local.server import flags
from triptych.offline.arguments import server_options
from triptych_cli.main import app
from triptych_cli.stack.service_flags import parse_settings, split_service_args
from typer.testing import CliRunner


def test_arguments_become_settings_that_exist() -> None:
    options = server_options(
        {
            "max_model_len": 512,
            "quantization": "int8",
            "dtype": "half",
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "kv_cache_memory_bytes": 1 << 20,
            "gpu_memory_utilization": 0.5,
            "enable_prefix_caching": False,
            "enforce_eager": True,
            "block_size": 32,
            "generation_config": "vllm",
            "allowed_local_media_path": "/",
            "runner": "pooling",
            "served_model_name": "mine",
            "engines": 2,
        }
    )
    engine, frontend = options.pop("engine"), options.pop("frontend")
    _, given = split_service_args([*flags(engine, "engine"), *flags(frontend, "frontend")])
    settings = parse_settings("engine", given["engine"])
    assert (
        settings.model_dump().items()
        >= {
            "dtype": "float16",
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "kv_cache_memory": 1 << 20,
            "memory_utilization": 0.5,
            "enable_prefix_caching": False,
            "cuda_graphs": False,
            "block_size": 32,
        }.items()
    )
    assert parse_settings("frontend", given["frontend"]).model_dump()["generation_config"] == "none"
    assert options == {"max_model_len": 512, "quantization": "int8", "task": "embed", "served_model_name": "mine", "engines": 2}
    # `triptych serve` knows these options.
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).stdout
    assert all(f"--{name.replace('_', '-')}" in shown for name in [*options, "ready_fd", "parent_pid"])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("pipeline_parallel_size", 2, "pipeline_parallel_size=2 is not supported: an engine divides its model by"),
        ("trust_remote_code", True, "never run"),
        ("seed", 0, "seeds belong to requests"),
        ("runner", "draft", "known are generate, pooling"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as raised:
        LLM("no-model", **{name: value})
    assert raised.value.field == name


def test_values_that_change_nothing_are_taken() -> None:
    neutral = {"pipeline_parallel_size": 1, "trust_remote_code": False, "seed": None, "swap_space": 0, "max_num_seqs": None}
    assert server_options(neutral) == {"engine": {"max_num_seqs": None}, "frontend": {}}
    # True is not 1 where a number is meant.
    with pytest.raises(InvalidRequestError):
        server_options({"pipeline_parallel_size": True})


def test_unknown_arguments() -> None:
    with pytest.raises(TypeError, match="'max_tokens'"):
        LLM("no-model", max_tokens=3)


def test_arguments_of_services_beside_an_address() -> None:
    with pytest.raises(InvalidRequestError, match="max_num_seqs has no effect with address"):
        LLM(address="127.0.0.1:1", max_num_seqs=3)
    with pytest.raises(InvalidRequestError, match="engine has no effect with address"):
        LLM(address="127.0.0.1:1", engine={"port": 3})
    with pytest.raises(InvalidRequestError, match="model is required"):
        LLM()


def test_services_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StartupError, match=r"run: pip install .*\[local\]"):
        LLM("no-model")


def test_an_error_can_be_sent_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(GenerationError(3, InvalidRequestError("bad", field="a"))))  # noqa: S301
    assert (error.index, str(error)) == (3, "prompts[3]: bad")
    assert isinstance(error.__cause__, InvalidRequestError)
    assert error.__cause__.field == "a"


def test_a_structured_output_has_one_form() -> None:
    options = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["a"])).to_options()
    assert [*options.constraint.choice.values] == ["a"]
    with pytest.raises(InvalidRequestError, match="structured_outputs must have one of json, regex, choice, grammar, json_object"):
        SamplingParams(structured_outputs=StructuredOutputsParams()).to_options()


def test_beam_search_has_no_temperature() -> None:
    options = BeamSearchParams(beam_width=3, max_tokens=5, length_penalty=0.5).to_options()
    assert (options.n, options.beam_search.width, options.beam_search.length_penalty) == (3, 3, 0.5)
    with pytest.raises(InvalidRequestError, match="temperature 0"):
        BeamSearchParams(beam_width=3, max_tokens=5, temperature=0.7).to_options()
