"""Flags that people paste from vLLM's, SGLang's and llama.cpp's command lines."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main
from triptych_cli.errors import CommandError
from triptych_cli.main import app
from triptych_cli.stack.foreign_flags import FOREIGN_FLAGS, help_text, translate
from triptych_cli.stack.options import ServeOptions
from triptych_cli.stack.plan import plan
from triptych_cli.stack.service import Service, spec
from triptych_cli.stack.service_flags import secrets_apart, settings_class, split_service_args
from typer.testing import CliRunner


def planned(*args: str) -> dict[str, Service]:
    """The services that a command line starts, by kind. Nothing of it may be left for `triptych serve` itself."""
    ours, _ = translate(args)
    rest, flags = split_service_args(ours)
    assert rest == []
    return {service.kind: service for service in plan(ServeOptions("some/model"), flags, with_encoder=True)}


@pytest.mark.parametrize(
    ("args", "service", "setting", "value"),
    [
        (["--dtype", "half"], "engine", "dtype", "float16"),
        (["--dtype=float"], "encoder", "dtype", "float32"),
        (["--max-num-seqs", "7"], "engine", "max_num_seqs", 7),
        (["--max_num_batched_tokens", "2k"], "engine", "max_num_batched_tokens", 2000),
        (["--kv-cache-memory-bytes", "2G"], "engine", "kv_cache_memory", 2 << 30),
        (["--kv-cache-dtype", "bfloat16"], "engine", "kv_cache_dtype", "bfloat16"),
        (["--block-size", "32"], "engine", "block_size", 32),
        (["--enable-prefix-caching"], "engine", "enable_prefix_caching", True),
        (["--no-enable-prefix-caching"], "engine", "enable_prefix_caching", False),
        (["--async-scheduling"], "engine", "async_scheduling", True),
        (["--enforce-eager"], "engine", "cuda_graphs", False),
        (["--no-enforce-eager"], "engine", "cuda_graphs", True),
        (["--device", "cpu"], "encoder", "device", "cpu"),
        (["--gpu-memory-utilization", "0.5"], "engine", "memory_utilization", 0.5),
        (["-t", "3"], "engine", "num_threads", 3),
        (["--tool-call-parser", "hermes"], "frontend", "tool_call_parser", "hermes"),
        (["--reasoning-parser", "qwen3"], "frontend", "reasoning_parser", "qwen3"),
        (["--generation-config", "vllm"], "frontend", "generation_config", "none"),
        (["--uvicorn-log-level", "warning"], "gateway", "log_level", "WARNING"),
        (["--disable-uvicorn-access-log"], "gateway", "access_log", False),
        (["--dtype", "half", "--engine.dtype", "float32"], "engine", "dtype", "float32"),
        (["--enforce-eager", "--engine.cuda-graphs"], "engine", "cuda_graphs", True),
    ],
)
def test_a_flag_reaches_the_service(args: list[str], service: str, setting: str, value: object) -> None:
    assert getattr(planned(*args)[service].settings, setting) == value


@pytest.mark.parametrize(
    ("args", "ours"),
    [
        (["--model", "org/name", "--port", "1"], ["org/name", "--port", "1"]),
        (["-dp", "2"], ["--engines=2"]),
        (["--max-model-len", "32k"], ["--max-model-len=32000"]),
        (["-c", "8K"], ["--max-model-len=8192"]),
        (["--quantization", "int8"], ["--quantization=int8"]),
        (["--runner", "pooling"], ["--task=embed"]),
        (["--alias", "m", "--hf-repo", "org/name"], ["--served-model-name=m", "org/name"]),
        (["-pp=1", "--seed", "0", "--convert", "auto"], []),
        (["--no-trust-remote-code", "--no-enable-lora", "--no-enable-log-requests"], []),
        (["--", "--dtype"], ["--", "--dtype"]),
    ],
)
def test_a_flag_becomes_an_option_of_serve(args: list[str], ours: list[str]) -> None:
    assert translate(args) == (ours, [])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--pipeline-parallel-size", "2"], "--pipeline-parallel-size is not supported: an engine divides its model by --tensor"),
        (["-pp", "2"], "-pp is not supported: an engine"),
        (["--trust-remote-code"], "--trust-remote-code is not supported: code of checkpoints is never run"),
        (["--limit-mm-per-prompt", '{"image": 4}'], "use --frontend.max-media-items N"),
        (["--quantization", "awq"], "--quantization awq is not supported: what a checkpoint's weights are quantised with is read"),
        (["--seed", "42"], '"seed" in its body'),
        (["--hf-token", "hf_secret"], "set HF_TOKEN"),
        (["--no-enable-chunked-prefill"], "prompts are always computed in chunks"),
        (["--dtype"], "--dtype needs a value"),
        (["--enforce-eager=1"], "--enforce-eager takes no value"),
        (["--kv-cache-dtype", "fp8"], "kv_cache_dtype: Input should be 'auto', 'bfloat16', 'float32' or 'int8' (given: 'fp8')"),
    ],
)
def test_what_is_not_supported_is_one_line_that_says_what_to_use(args: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["serve", *args], catch_exceptions=False)
    assert result.exit_code == 2
    assert message in result.output
    assert result.output.count("\n") == 1
    assert "hf_secret" not in result.output


def test_what_changes_nothing_is_noted() -> None:
    ours, notes = translate(["--swap-space", "4", "--enable-auto-tool-choice", "--disable-log-requests", "m"])
    assert ours == ["m"]
    assert [note.partition(":")[0] for note in notes] == [
        "--swap-space changes nothing", "--enable-auto-tool-choice changes nothing", "--disable-log-requests changes nothing"
    ]  # fmt: skip


def test_every_flag_of_the_table_names_something_that_exists() -> None:
    command: Any = typer.main.get_command(app)
    serve = {option.removeprefix("--") for parameter in command.commands["serve"].params for option in parameter.opts}
    for written, flag in FOREIGN_FLAGS.items():
        # A switch names settings in its values, a flag with a value names them itself.
        for name in flag.flags if flag.takes_value else flag.values.values():
            service, dot, setting = name.partition(".")
            field = setting.removeprefix("no-").replace("-", "_")
            assert field in settings_class(service).model_fields if dot else name in serve, f"{written} -> {name}"
        assert flag.flags or flag.values or flag.why, written


def test_help_lists_what_is_taken() -> None:
    result = CliRunner().invoke(app, ["serve", "--help"], catch_exceptions=False)
    words = " ".join(result.output.split()).replace("- ", "-")  # lines may end behind a hyphen
    assert all(name in words for name in ("--dtype", "--api-key", "--max-num-seqs", "--context-length"))
    assert "--trust-remote-code" not in help_text()


@pytest.mark.parametrize("args", [["--api-key", "s3cret"], ["--api-key=s3cret"], ["--gateway.api-key", "s3cret"]])
def test_a_key_is_in_the_gateways_environment_not_on_its_command_line(args: list[str]) -> None:
    gateway = planned(*args)["gateway"]
    started = spec(gateway)
    assert started.env["TRIPTYCH_GATEWAY_API_KEY"] == "s3cret"
    assert "s3cret" not in " ".join(started.argv)
    assert "s3cret" not in repr(gateway)
    assert gateway.settings.has_keys  # type: ignore[attr-defined]
    assert all("s3cret" not in " ".join(spec(other).env.values()) for kind, other in planned(*args).items() if kind != "gateway")


@pytest.mark.parametrize(
    ("service", "flag", "variable"),
    [
        ("encoder", "--store-url", "TRIPTYCH_ENCODER_STORE_URL"),
        ("gateway", "--response-store", "TRIPTYCH_GATEWAY_RESPONSE_STORE"),
        ("gateway", "--rate-limit-store", "TRIPTYCH_GATEWAY_RATE_LIMIT_STORE"),
    ],
)
def test_urls_with_passwords_are_in_the_environment(service: str, flag: str, variable: str) -> None:
    url = "redis://:pass@host:1/0"
    assert secrets_apart(service, ["--port", "1", flag, url]) == (["--port", "1"], {variable: url})


def test_a_missing_value_is_told() -> None:
    with pytest.raises(CommandError, match="--max-num-seqs needs a value"):
        translate(["--max-num-seqs"])
