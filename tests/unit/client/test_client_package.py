"""The package `triptych`: its exports, what importing it costs, SamplingParams, and settings of connections."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import triptych
from triptych import KeepAliveConfig, RetryConfig, SamplingParams, StructuredOutputsParams
from triptych.errors import InvalidRequestError
from triptych.installation import install_command
from triptych.v1 import generation_pb2


def test_the_contracts_load_no_client() -> None:
    program = (
        "import sys, triptych.v1, triptych.errors, triptych.v1.generation_pb2;"
        "print(*sorted(name for name in sys.modules if name.startswith(('triptych.', 'grpc', 'numpy', 'PIL'))))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == [
        "triptych.errors",
        "triptych.v1",
        *(f"triptych.v1.{name}_pb2" for name in ("common", "encoder", "engine", "generation")),
    ]


def test_the_client_loads_neither_numpy_nor_pillow() -> None:
    program = "import sys, triptych; triptych.Client, triptych.AsyncClient; print('numpy' in sys.modules, 'PIL' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded == "False False\n"


def test_exports_are_those_that_type_checkers_see() -> None:
    tree = ast.parse(Path(triptych.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == triptych._EXPORTS
    for name in seen:
        assert getattr(triptych, name).__name__ == name
        assert name in dir(triptych)
    with pytest.raises(AttributeError, match="Klient"):
        _ = triptych.Klient


def test_defaults_of_sampling_are_vllms() -> None:
    options = SamplingParams().to_options()
    sampling = options.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k, options.n) == (16, 1.0, 1.0, 0, 1)
    assert not sampling.HasField("seed")
    assert not sampling.HasField("logprobs")
    assert not options.HasField("constraint")


def test_sampling_params_become_options() -> None:
    params = SamplingParams(
        max_tokens=None, top_k=-1, seed=-1, stop="x", stop_token_ids=[1], include_stop_str_in_output=True, logit_bias={1: 2.0},
        structured_outputs=StructuredOutputsParams(json={"type": "object"}), bad_words=["w"], logprobs=0,
    )  # fmt: skip
    options = params.to_options()
    assert not options.sampling.HasField("max_tokens")
    assert not options.sampling.HasField("seed")
    assert (options.sampling.top_k, options.sampling.logprobs, options.sampling.HasField("logprobs")) == (0, 0, True)
    assert (list(options.stop), options.include_stop_in_output, list(options.bad_words)) == (["x"], True, ["w"])
    assert options.constraint.json_schema == '{"type": "object"}'
    assert isinstance(options, generation_pb2.GenerationOptions)
    assert list(SamplingParams(stop=["a", "b"]).to_options().stop) == ["a", "b"]


def test_sampling_params_name_what_does_not_fit() -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        SamplingParams(max_tokens=-3).to_options()
    with pytest.raises(InvalidRequestError, match="json_schema and regex"):
        SamplingParams(structured_outputs=StructuredOutputsParams(json="{}", regex="a")).to_options()


@pytest.mark.parametrize("attempts", [0, 6])
def test_settings_of_retries_are_checked(attempts: int) -> None:
    with pytest.raises(ValueError, match=f"max_attempts is {attempts}"):
        RetryConfig(max_attempts=attempts)
    with pytest.raises(ValueError, match="max_backoff_s"):
        RetryConfig(max_backoff_s=0)
    with pytest.raises(ValueError, match="time_s"):
        KeepAliveConfig(time_s=-1)


def test_without_the_local_extra_llm_says_what_to_install():
    program = "import sys; sys.modules['numpy'] = None; from triptych import LLM"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last == f"ImportError: triptych.LLM needs numpy, which is not installed; run: {install_command('triptych', 'local')}"
